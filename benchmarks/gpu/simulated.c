/* A GPU that takes time and does nothing, for benchmarks/gpu/simulated.py.

   Copies take turns on the bus, kernels on the GPU, and a stream goes on when both it and
   what it asks for are free. Those who wait sleep, so that all CPU time is the reader's. */

#include <pthread.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <time.h>

enum { N_STREAMS = 4096, N_EVENTS = 65536, N_GAPS = 65536 };

double gs_bus_nbytes_per_s = 52e9, gs_read_nbytes_per_s = 8.5e9;
/* When the bus (0) and the GPU (1) had nothing to do: from, to, in seconds. */
double gs_gaps[2][N_GAPS][2];
int gs_n_gaps[2];

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static double is_free[2], ready[N_STREAMS], done[N_EVENTS];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double later(double a, double b) { return a > b ? a : b; }

static void sleep_until(double at) {
    if (at <= now()) return;
    prctl(PR_SET_TIMERSLACK, 1000); /* ns; the default is 50 us */
    struct timespec t = {(time_t)at, (long)((at - (time_t)at) * 1e9)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0)) continue;
}

/* Have the bus or the GPU do something on a stream, as soon as both are free. */
static int queue(int which, uint64_t stream, double seconds) {
    pthread_mutex_lock(&turn);
    double *at = &ready[stream % N_STREAMS], *last = &is_free[which];
    double begin = later(now(), *at);
    int n = gs_n_gaps[which];
    if (begin > *last && n < N_GAPS) {
        gs_gaps[which][n][0] = *last;
        gs_gaps[which][n][1] = begin;
        gs_n_gaps[which]++;
    }
    *at = *last = later(begin, *last) + seconds;
    pthread_mutex_unlock(&turn);
    return 0;
}

/* Functions of the driver (see devices/base.py, CopyCalls), and what else is queued. */

int gs_upload(uint64_t address, uint64_t host, uint64_t nbytes, uint64_t stream) {
    return queue(0, stream, nbytes / gs_bus_nbytes_per_s);
}

int gs_work(uint64_t stream, double seconds) { return queue(1, stream, seconds); }

int gs_record(uint64_t event, uint64_t stream) {
    done[event % N_EVENTS] = ready[stream % N_STREAMS];
    return 0;
}

int gs_await(uint64_t stream, uint64_t event) {
    double *at = &ready[stream % N_STREAMS];
    *at = later(*at, done[event % N_EVENTS]);
    return 0;
}

int gs_wait(uint64_t event) {
    sleep_until(done[event % N_EVENTS]);
    return 0;
}

int gs_wait_for(uint64_t stream) {
    sleep_until(ready[stream % N_STREAMS]);
    return 0;
}

int gs_exchange_mode(uint64_t at) { return 0; }

int gs_get_context(uint64_t at) {
    *(uint64_t *)at = 0;
    return 0;
}

int gs_set_context(uint64_t context) { return 0; }

/* A file whose bytes are in the page cache of a machine with a core for each thread. */
ssize_t gs_pread(int fd, void *to, size_t nbytes, off_t offset) {
    sleep_until(now() + nbytes / gs_read_nbytes_per_s);
    return nbytes;
}
