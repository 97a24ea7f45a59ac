/*
 * The connection of a sandbox's helper to whoever claims it (helper.c, which is the only one that includes this): frames, and what all need.
 *
 * A frame is its length (4 bytes, big-endian) and as many bytes: fields, each with its length before it in the same way. Requests and answers:
 *
 *     run MILLISECONDS MOST INPUT PROGRAM ARGUMENT...   ->  ok CODE ENDED OUTPUT ERRORS   (CODE below 0: a signal; ENDED: "", "timeout" or "output")
 *     write PATH BYTES                                  ->  ok
 *     read PATH MOST                                    ->  ok BYTES
 *     whatever cannot be done                           ->  error TEXT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST_BYTES (4u << 20) /* of a frame */
#define MOST_FIELDS 1024
#ifndef SILENCE_SECONDS
#define SILENCE_SECONDS 30
#endif
#define STRANGER_SECONDS 5 /* for the token */
#define TOKEN_BYTES 64

typedef struct {
    uint32_t size;
    char *bytes;
} Field;

typedef struct {
    char *bytes;
    size_t size;
    int cut; /* there was more */
} Output;

static char request[MOST_BYTES + 1];
static Field fields[MOST_FIELDS + 1];
static uint32_t count;
static int claim = -1;
static volatile sig_atomic_t heard; /* second in which the claim said something last; read in a signal handler */

static void leave(void) { _exit(0); }

static void die(const char *what) {
    perror(what);
    _exit(1);
}

static long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000L + t.tv_nsec / 1000000L;
}

static sig_atomic_t seconds(void) { return (sig_atomic_t)(now_ms() / 1000); }

/* The connection: whatever is wrong with it ends the claim. */

static int receive_all(int from, void *to, size_t size) {
    for (size_t got = 0; got < size;) {
        ssize_t n = recv(from, (char *)to + got, size - got, 0);
        if (n <= 0 && !(n < 0 && errno == EINTR)) return -1;
        if (n > 0) got += (size_t)n;
    }
    return 0;
}

static void send_all(const void *from, size_t size) {
    for (size_t sent = 0; sent < size;) {
        ssize_t n = send(claim, (const char *)from + sent, size - sent, MSG_NOSIGNAL);
        if (n <= 0 && !(n < 0 && errno == EINTR)) leave();
        if (n > 0) sent += (size_t)n;
    }
}

/* Into `request`. Its size, or -1. */
static int64_t receive_frame(int from, uint32_t most) {
    uint32_t size;
    if (receive_all(from, &size, sizeof size) || (size = ntohl(size)) > most || receive_all(from, request, size)) return -1;
    heard = seconds();
    return size;
}

static void send_size(size_t size) {
    uint32_t n = htonl((uint32_t)size);
    send_all(&n, sizeof n);
}

static void answer(int parts, const Field *part) {
    size_t whole = 0;
    for (int i = 0; i < parts; i++) whole += 4 + part[i].size;
    send_size(whole);
    for (int i = 0; i < parts; i++) {
        send_size(part[i].size);
        send_all(part[i].bytes, part[i].size);
    }
}

static Field text(char *bytes) { return (Field){(uint32_t)strlen(bytes), bytes}; }

static void answer_error(const char *format, ...) {
    char said[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(said, sizeof said, format, arguments);
    va_end(arguments);
    answer(2, (Field[]){text("error"), text(said)});
}

/* Fields of the request, each with a NUL behind it: its place is that of the next one's length, which has been read. */
static void split(uint32_t size) {
    uint32_t at = 0;
    for (count = 0; at < size && count < MOST_FIELDS; count++) {
        uint32_t length;
        if (size - at < 4) leave();
        memcpy(&length, request + at, 4);
        request[at] = 0;
        length = ntohl(length);
        at += 4;
        if (length > size - at) leave();
        fields[count] = (Field){length, request + at};
        at += length;
    }
    request[size] = 0;
    if (at != size) leave();
}
