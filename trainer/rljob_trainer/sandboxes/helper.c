/*
 * PID 1 of a sandbox: runs programs for whoever claims it, and ends with the claim, and all programs with it.
 *
 *     helper TOKEN_FILE PORT
 *
 * A claim is a connection, whose first frame is the token. There is one in the life of a helper, so that nothing of a claim is left for the next one;
 * the port is closed to all others then. The connection ends when its other end is gone, or has said nothing for SILENCE_SECONDS: an empty frame says
 * that it is there.
 *
 * It is C, and linked statically, since the image of a sandbox may be any: without Python, without a shell, without or with another libc.
 * connection.h has the claim's frames.
 */
#include "connection.h"

/* Programs. SIGCHLD is blocked but while something is waited for. */

static int waits(struct pollfd *of, nfds_t n, long ms) {
    sigset_t none;
    sigemptyset(&none);
    return ppoll(of, n, &(struct timespec){ms / 1000, ms % 1000 * 1000000L}, &none);
}

/* A program may let this process trace it, of which `waitpid` reports stops, too. */
static int has_ended(int status) { return WIFEXITED(status) || WIFSIGNALED(status); }

/* Also reaps what nobody waits for. */
static int is_running(pid_t child, int *status) {
    int one, running = 1;
    for (pid_t found; (found = waitpid(-1, &one, WNOHANG)) > 0;)
        if (found == child && has_ended(one)) *status = one, running = 0;
    return running;
}

static void become(int in, int out, int err, char **arguments) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    setsid();
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(127);
    execvp(arguments[0], arguments);
    dprintf(2, "%s: %s\n", arguments[0], strerror(errno));
    _exit(127);
}

typedef struct {
    int in, out[2]; /* our ends of its pipes; -1: closed */
    Field left;     /* of its input */
    Output said[2]; /* output and errors */
    size_t most;    /* of each */
} Child;

static void hang_up(int *end) {
    if (*end >= 0) close(*end);
    *end = -1;
}

static void give(Child *c) {
    ssize_t n = c->left.size ? write(c->in, c->left.bytes, c->left.size) : 0;
    if (n > 0) c->left = (Field){c->left.size - (uint32_t)n, c->left.bytes + n};
    if (!c->left.size || (n < 0 && errno != EAGAIN && errno != EINTR)) hang_up(&c->in);
}

/* What there is. Returns whether there was something. */
static int take(Child *c, int i) {
    Output *to = &c->said[i];
    char beyond;
    size_t room = c->most - to->size;
    if (c->out[i] < 0 || to->cut) return 0;
    ssize_t n = read(c->out[i], room ? to->bytes + to->size : &beyond, room ? room : 1);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) hang_up(&c->out[i]);
    if (n <= 0) return 0;
    if (room)
        to->size += (size_t)n;
    else
        to->cut = 1;
    return 1;
}

/* Until it ends, its time is over, or it has said too much. What it has started in the background still runs, and keeps nobody waiting. */
static char *follow(pid_t pid, Child *c, long until, int *status) {
    while (is_running(pid, status)) {
        long now = now_ms();
        char *end = now >= until ? "timeout" : c->said[0].cut || c->said[1].cut ? "output" : NULL;
        if (end) {
            kill(-pid, SIGKILL);
            kill(pid, SIGKILL); /* it may not be the leader of its group yet */
            while (waitpid(pid, status, 0) < 0 ? errno == EINTR : !has_ended(*status)) continue;
            return end;
        }
        struct pollfd of[] = {{c->in, POLLOUT, 0}, {c->out[0], POLLIN, 0}, {c->out[1], POLLIN, 0}, {claim, POLLIN, 0}};
        if (waits(of, 4, until - now < 1000 ? until - now : 1000) <= 0) continue;
        if (of[0].revents) give(c);
        for (int i = 0; i < 2; i++)
            if (of[1 + i].revents) take(c, i);
        if (of[3].revents && receive_frame(claim, 0)) leave(); /* only empty frames come meanwhile */
    }
    while (take(c, 0) | take(c, 1)) continue;
    return c->said[0].cut || c->said[1].cut ? "output" : "";
}

static void tell(int status, char *ended, const Child *c) {
    char code[16];
    snprintf(code, sizeof code, "%d", WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status));
    Field output = {(uint32_t)c->said[0].size, c->said[0].bytes}, errors = {(uint32_t)c->said[1].size, c->said[1].bytes};
    answer(5, (Field[]){text("ok"), text(code), text(ended), output, errors});
}

static void run(void) {
    char *arguments[MOST_FIELDS + 1];
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1}, status = 0;
    size_t most = strtoul(fields[2].bytes, NULL, 10);
    if (count < 5 || most > MOST_BYTES / 4) leave();
    for (uint32_t i = 4; i < count; i++) arguments[i - 4] = fields[i].bytes;
    arguments[count - 4] = NULL;
    Child c = {.left = fields[3], .said = {{malloc(most + 1), 0, 0}, {malloc(most + 1), 0, 0}}, .most = most};
    pid_t pid = -1;
    if (c.said[0].bytes && c.said[1].bytes && !pipe2(in, O_CLOEXEC) && !pipe2(out, O_CLOEXEC) && !pipe2(err, O_CLOEXEC)) pid = fork();
    if (pid == 0) become(in[0], out[1], err[1], arguments);
    int error = errno;
    hang_up(&in[0]), hang_up(&out[1]), hang_up(&err[1]);
    c.in = in[1], c.out[0] = out[0], c.out[1] = err[0];
    if (pid < 0) {
        answer_error("no process can be started: %s", strerror(error));
    } else {
        fcntl(c.in, F_SETFL, O_NONBLOCK), fcntl(c.out[0], F_SETFL, O_NONBLOCK), fcntl(c.out[1], F_SETFL, O_NONBLOCK);
        char *ended = follow(pid, &c, now_ms() + atol(fields[1].bytes), &status);
        tell(status, ended, &c);
    }
    hang_up(&c.in), hang_up(&c.out[0]), hang_up(&c.out[1]);
    free(c.said[0].bytes), free(c.said[1].bytes);
}

/* Files. A program may have put anything at a path, so nothing but regular files is waited for, and nothing of this process is shown. */

static int opened(char *path, int flags) {
    struct stat found;
    struct statfs system;
    int file = open(path, flags | O_NONBLOCK | O_CLOEXEC, 0755);
    if (file >= 0 && (fstat(file, &found) || !S_ISREG(found.st_mode) || fstatfs(file, &system) || system.f_type == PROC_SUPER_MAGIC)) {
        close(file);
        errno = EINVAL;
        return -1;
    }
    return file;
}

static void write_file(void) {
    char *path = fields[1].bytes;
    if (count != 3) leave();
    for (char *at = path + 1; *path && (at = strchr(at, '/')); *at++ = '/') {
        *at = 0;
        mkdir(path, 0755); /* what is wrong with it, `open` says */
    }
    int file = opened(path, O_WRONLY | O_CREAT);
    int failed = file < 0 || fchmod(file, 0755) || ftruncate(file, 0);
    for (uint32_t done = 0; !failed && done < fields[2].size;) {
        ssize_t n = write(file, fields[2].bytes + done, fields[2].size - done);
        failed = n < 0;
        if (n > 0) done += (uint32_t)n;
    }
    if (failed)
        answer_error("%s: %s", path, strerror(errno));
    else
        answer(1, (Field[]){text("ok")});
    hang_up(&file);
}

static void read_file(void) {
    static char bytes[MOST_BYTES / 4 + 1];
    size_t most = strtoul(fields[2].bytes, NULL, 10), size = 0;
    if (count != 3 || most > MOST_BYTES / 4) leave();
    int file = opened(fields[1].bytes, O_RDONLY);
    ssize_t n = file < 0 ? -1 : 1;
    while (n > 0 && size <= most) {
        n = read(file, bytes + size, most + 1 - size);
        if (n > 0) size += (size_t)n;
    }
    if (n < 0)
        answer_error("%s: %s", fields[1].bytes, strerror(errno));
    else if (size > most)
        answer_error("%s: has more than %zu bytes", fields[1].bytes, most);
    else
        answer(2, (Field[]){text("ok"), {(uint32_t)size, bytes}});
    hang_up(&file);
}

/* The claim. */

static int listening(uint16_t port) {
    int s = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), off = 0;
    if (s >= 0) {
        setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_any};
        if (!bind(s, (struct sockaddr *)&any, sizeof any) && !listen(s, 4)) return s;
        close(s);
    }
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(port)};
    s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0 || bind(s, (struct sockaddr *)&any, sizeof any) || listen(s, 4)) die("listen");
    return s;
}

static void limit(int s, int seconds) {
    struct timeval time = {seconds, 0};
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

static int knows(int s, const char *token) {
    unsigned differs = receive_frame(s, TOKEN_BYTES) != TOKEN_BYTES;
    for (int i = 0; !(differs & 1) && i < TOKEN_BYTES; i++) differs |= (unsigned)(request[i] ^ token[i]) << 1;
    return !differs;
}

static int claimed(int listener, const char *token) {
    for (;;) {
        int s = accept4(listener, NULL, NULL, SOCK_CLOEXEC), on = 1;
        if (s < 0) continue;
        limit(s, STRANGER_SECONDS);
        if (knows(s, token)) {
            /* bound, so that no program takes it, and closed: a probe says that the sandbox is not free any more */
            shutdown(listener, SHUT_RDWR);
            limit(s, 0); /* `watch` does */
            setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            return s;
        }
        close(s);
    }
}

static void serve(void) {
    for (int status;;) {
        struct pollfd of = {claim, POLLIN, 0};
        int n = waits(&of, 1, 1000);
        is_running(0, &status);
        if (n <= 0) continue;
        int64_t size = receive_frame(claim, MOST_BYTES);
        if (size < 0) leave();
        if (!size) continue;
        split((uint32_t)size);
        if (count >= 3 && !strcmp(fields[0].bytes, "run"))
            run();
        else if (count == 3 && !strcmp(fields[0].bytes, "write"))
            write_file();
        else if (count == 3 && !strcmp(fields[0].bytes, "read"))
            read_file();
        else
            leave();
    }
}

/* Signals. Programs run as the same user, so that any may send any: what counts is what they cannot forge. */

/* The kernel, or a process outside of this PID namespace: it has no number in here. */
static void ask_to_end(int number, siginfo_t *from, void *context) {
    (void)number, (void)context;
    if (from->si_code == SI_KERNEL || (from->si_code == SI_USER && !from->si_pid)) leave();
}

/* In each second, wherever the process is: a program can have it wait for good (a tracer keeps what it traces from being reaped). */
static void watch(int number) {
    (void)number;
    if (seconds() - heard > SILENCE_SECONDS) leave();
}

static void wake(int number) { (void)number; }

int main(int argc, char **argv) {
    char token[TOKEN_BYTES];
    sigset_t children;
    int file = argc == 3 ? open(argv[1], O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0 || read(file, token, TOKEN_BYTES) != TOKEN_BYTES) die("token");
    close(file);
    prctl(PR_SET_DUMPABLE, 0); /* programs run as the same user, and may not look into this process */
    sigaction(SIGTERM, &(struct sigaction){.sa_sigaction = ask_to_end, .sa_flags = SA_SIGINFO | SA_RESTART}, NULL); /* PID 1 has no default */
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = watch, .sa_flags = SA_RESTART}, NULL);
    sigaction(SIGCHLD, &(struct sigaction){.sa_handler = wake}, NULL);
    signal(SIGPIPE, SIG_IGN); /* of a program that does not read its input */
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, NULL);
    claim = claimed(listening((uint16_t)atoi(argv[2])), token);
    setitimer(ITIMER_REAL, &(struct itimerval){{1, 0}, {1, 0}}, NULL);
    answer(1, (Field[]){text("ok")});
    serve();
}
