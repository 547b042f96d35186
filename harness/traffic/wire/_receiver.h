/* What the thread (`_loop.c`) and Python (`_receiver.c`) share.
 *
 * Who owns what. Everything in a Receiver belongs to its thread, but for what stands under "shared" (guarded by `lock`)
 * and "Python's" (used with the GIL only). A Request passes from Python to the thread by `submitted` and back by
 * `ready`; in between it is the thread's. The thread never takes the GIL nor touches a reference count.
 */

#ifndef KVMARK_RECEIVER_H
#define KVMARK_RECEIVER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_framing.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define NOWHERE SIZE_MAX
#define READ_BYTES 65536
#define MAX_ADDRESSES 8
#define LEAST_AHEAD INT64_C(20000000)  /* ns; a connection is made this long before it is needed, or longer: `_loop.c` */

typedef struct {
    char *raw;
    size_t size, room;
    int64_t *read_ns;
    uint32_t *read_bytes;
    size_t reads, reads_room;
} Bytes;

typedef struct Request Request;
typedef struct Connection Connection;

/* Something for Python: a part of an answer, or its end. */
typedef struct Delivery {
    struct Delivery *next;
    Request *request;
    Bytes bytes;
    bool last;
} Delivery;

typedef struct {
    Delivery *first, **end;
} Queue;

/* Where a request stands. WAITING: for a connection or the time to make one. OPEN: for its due time. */
typedef enum { WAITING, CONNECTING, OPEN, SENT } Stage;

typedef enum { NO_ERROR, CONNECT, TIMEOUT, RESET, END_OF_FILE, MALFORMED, ABORTED, ERRORS } Error;
struct Request {
    PyObject_HEAD
    /* Python's */
    PyObject *greenlet, *exchange;
    Py_buffer *pieces;
    Py_ssize_t views;
    char ended;  /* its last delivery was taken */
    /* set before it is submitted */
    struct iovec *vector;
    int vectors;
    int64_t due_ns, deadline_ns;
    size_t spill_bytes;
    /* shared */
    Request *next_submitted, *next_cancelled, *next_doomed;
    bool settled;  /* the thread has let go of it */
    /* the thread's */
    Stage stage;
    Connection *connection;
    size_t tried;  /* addresses */
    int64_t connect_ns, dialled_ns, timer_ns;
    size_t heap_index;
    int vector_index;
    size_t vector_offset;
    int send_error;
    Bytes bytes;
    bool answered;  /* something came */
    int64_t mark_ns;
    /* the outcome */
    int64_t sent_ns, ended_ns;
    bool reused;
    unsigned resends;
    Error error;
    int error_number;
    const char *detail;
    Delivery end;
};

struct Connection {
    int fd;         /* -1: closed; freed once the events at hand are handled */
    bool readable;  /* something came before the request was sent */
    bool draining;
    unsigned served;
    size_t address;
    Framing framing;  /* of the answer that it carries */
    Request *request;
    int64_t since;  /* in its list */
    Connection *before, *after;
};

/* Connections without a request, the oldest first. */
typedef struct {
    Connection *first, *last;
    int64_t most_ns;
} Resting;

typedef struct {
    int family;
    socklen_t length;
    struct sockaddr_storage storage;
} Address;

typedef struct {
    PyObject_HEAD
    /* Python's */
    Queue taken;
    pid_t process;
    pthread_t thread;
    bool running;
    /* constants */
    int epoll, wake, signal;
    Address addresses[MAX_ADDRESSES];
    size_t address_count;
    int64_t finish_ns;
    size_t head_bytes;
    /* shared */
    pthread_mutex_t lock;
    pthread_cond_t settled;
    Request *submitted, **submitted_end, *cancelled;
    Queue ready;
    bool asleep, signalled, aborting, stopping;
    atomic_bool keep_alive;
    /* the thread's */
    Request **heap;
    size_t heap_size, heap_room;
    Queue delivered;
    Resting idle, draining;
    Connection *closed;
    size_t preferred;  /* the address that answered last */
    int64_t ahead_ns;
    bool coarse;  /* no epoll_pwait2 here */
    char *scratch;
} Receiver;

static inline void queue_init(Queue *queue)
{
    queue->first = NULL;
    queue->end = &queue->first;
}

static inline void queue_push(Queue *queue, Delivery *delivery)
{
    delivery->next = NULL;
    *queue->end = delivery;
    queue->end = &delivery->next;
}

static inline void queue_move(Queue *to, Queue *from)
{
    if (from->first) {
        *to->end = from->first;
        to->end = from->end;
        queue_init(from);
    }
}

bool bytes_append(Bytes *bytes, const char *data, size_t size);
bool bytes_add_reads(Bytes *bytes, const int64_t *read_ns, const uint32_t *read_bytes, size_t count);
void bytes_free(Bytes *bytes);

/* The thread: takes what is submitted, cancelled or ordered until it is told to stop. */
void *receiver_run(void *receiver);

#endif
