/* PID 1 of every pod: holds the pod's namespaces, reaps its orphans, leaves at SIGTERM. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int signal) { exit(0); }
static void reap(int signal) { while (waitpid(-1, NULL, WNOHANG) > 0); }

int main(void) {
    signal(SIGINT, leave);
    signal(SIGTERM, leave);
    signal(SIGCHLD, reap);
    for (;;) pause();
}
