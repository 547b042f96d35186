/* One thread per endpoint that sends requests at their time and receives the answers, without Python's GIL: what it
 * measures doesn't wait for Python, and Python is woken once a request, not once a token.
 *
 * Who owns what. Everything in a Receiver belongs to its thread, but for what stands under "shared" (guarded by `lock`)
 * and "Python's" (used with the GIL only). A Request passes from Python to the thread by `submitted` and back by
 * `ready`; in between it is the thread's. The thread never takes the GIL nor touches a reference count.
 *
 * Sockets are watched edge-triggered and registered once, so a read costs one recv and its share of an epoll_wait.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "_framing.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MS INT64_C(1000000)
#define NEVER INT64_MAX
#define NOWHERE SIZE_MAX
#define READ_BYTES 65536
#define EVENTS 64          /* handled between two looks at the clock: a due request waits for no more reads than that */
#define MAX_ADDRESSES 8
#define LEAST_AHEAD (20 * MS)  /* a connection is made this long before its request is due; longer where it takes long */
#define MOST_AHEAD (500 * MS)
#define UNIX_RETRY (1 * MS)    /* a Unix socket's full backlog can't be waited for with epoll */

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
static const char *const ERROR_NAMES[ERRORS] = {
    NULL, "connect", "timeout", "reset", "eof", "malformed_http", "aborted"};

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

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void queue_init(Queue *queue)
{
    queue->first = NULL;
    queue->end = &queue->first;
}

static void queue_push(Queue *queue, Delivery *delivery)
{
    delivery->next = NULL;
    *queue->end = delivery;
    queue->end = &delivery->next;
}

static void queue_move(Queue *to, Queue *from)
{
    if (from->first) {
        *to->end = from->first;
        to->end = from->end;
        queue_init(from);
    }
}

/* ---- received bytes ---- */

static bool bytes_append(Bytes *bytes, const char *data, size_t size)
{
    if (bytes->size + size > bytes->room) {
        size_t room = bytes->room ? bytes->room : 2048;
        while (room < bytes->size + size)
            room += room / 2;
        char *raw = realloc(bytes->raw, room);
        if (!raw)
            return false;
        bytes->raw = raw;
        bytes->room = room;
    }
    memcpy(bytes->raw + bytes->size, data, size);
    bytes->size += size;
    return true;
}

static bool bytes_add_reads(Bytes *bytes, const int64_t *read_ns, const uint32_t *read_bytes, size_t count)
{
    if (bytes->reads + count > bytes->reads_room) {
        size_t room = bytes->reads_room ? bytes->reads_room : 16;
        while (room < bytes->reads + count)
            room += room / 2;
        int64_t *times = realloc(bytes->read_ns, room * sizeof *times);
        if (times)
            bytes->read_ns = times;
        uint32_t *sizes = realloc(bytes->read_bytes, room * sizeof *sizes);
        if (sizes)
            bytes->read_bytes = sizes;
        if (!times || !sizes)
            return false;
        bytes->reads_room = room;
    }
    memcpy(bytes->read_ns + bytes->reads, read_ns, count * sizeof *read_ns);
    memcpy(bytes->read_bytes + bytes->reads, read_bytes, count * sizeof *read_bytes);
    bytes->reads += count;
    return true;
}

static void bytes_free(Bytes *bytes)
{
    free(bytes->raw);
    free(bytes->read_ns);
    free(bytes->read_bytes);
    memset(bytes, 0, sizeof *bytes);
}

/* ---- timers: a heap that holds every request under way exactly once, by what happens next to it ---- */

static void heap_place(Receiver *r, Request *q, size_t i)
{
    r->heap[i] = q;
    q->heap_index = i;
}

static void heap_sift(Receiver *r, size_t i)
{
    Request *q = r->heap[i];
    while (i > 0 && r->heap[(i - 1) / 2]->timer_ns > q->timer_ns) {
        heap_place(r, r->heap[(i - 1) / 2], i);
        i = (i - 1) / 2;
    }
    for (;;) {
        size_t child = 2 * i + 1;
        if (child + 1 < r->heap_size && r->heap[child + 1]->timer_ns < r->heap[child]->timer_ns)
            child++;
        if (child >= r->heap_size || r->heap[child]->timer_ns >= q->timer_ns)
            break;
        heap_place(r, r->heap[child], i);
        i = child;
    }
    heap_place(r, q, i);
}

static bool heap_add(Receiver *r, Request *q)
{
    if (r->heap_size == r->heap_room) {
        size_t room = r->heap_room ? 2 * r->heap_room : 256;
        Request **heap = realloc(r->heap, room * sizeof *heap);
        if (!heap)
            return false;
        r->heap = heap;
        r->heap_room = room;
    }
    heap_place(r, q, r->heap_size++);
    heap_sift(r, q->heap_index);
    return true;
}

static void heap_remove(Receiver *r, Request *q)
{
    Request *last = r->heap[--r->heap_size];
    if (last != q) {
        heap_place(r, last, q->heap_index);
        heap_sift(r, last->heap_index);
    }
    q->heap_index = NOWHERE;
}

static void set_timer(Receiver *r, Request *q)
{
    int64_t next = q->deadline_ns;
    if (q->stage == WAITING && q->connect_ns < next)
        next = q->connect_ns;
    else if (q->stage == OPEN && q->due_ns < next)
        next = q->due_ns;
    else if (q->mark_ns && q->mark_ns + r->finish_ns < next)
        next = q->mark_ns + r->finish_ns;
    if (next != q->timer_ns) {
        q->timer_ns = next;
        heap_sift(r, q->heap_index);
    }
}

/* ---- connections ---- */

static void rest(Receiver *r, Resting *list, Connection *c)
{
    c->since = now_ns();
    c->draining = list == &r->draining;
    c->after = NULL;
    c->before = list->last;
    *(list->last ? &list->last->after : &list->first) = c;
    list->last = c;
}

static void unrest(Resting *list, Connection *c)
{
    *(c->before ? &c->before->after : &list->first) = c->after;
    *(c->after ? &c->after->before : &list->last) = c->before;
    c->before = c->after = NULL;
}

static void connection_close(Receiver *r, Connection *c)
{
    close(c->fd);  /* which takes it out of epoll */
    c->fd = -1;
    c->request = NULL;
    c->after = r->closed;
    r->closed = c;
}

static void bury(Receiver *r)
{
    while (r->closed) {
        Connection *c = r->closed;
        r->closed = c->after;
        free(c);
    }
}

static void rest_out(Receiver *r, Resting *list, int64_t now)
{
    while (list->first && now - list->first->since >= list->most_ns) {
        Connection *c = list->first;
        unrest(list, c);
        connection_close(r, c);
    }
}

/* Its answer is over, or what there is of it: serve another one, if it can. */
static void keep(Receiver *r, Connection *c)
{
    const Framing *f = &c->framing;
    if (f->place == COMPLETE && f->keeps && !f->surplus && atomic_load(&r->keep_alive)) {
        c->served++;
        rest(r, &r->idle, c);
    } else {
        connection_close(r, c);
    }
}

/* ---- the end of a request ---- */

static void finish(Receiver *r, Request *q, Error error, int number, const char *detail, int64_t ended_ns)
{
    Connection *c = q->connection;
    if (q->heap_index != NOWHERE)
        heap_remove(r, q);
    if (c) {
        c->request = NULL;
        if (q->vector_index < q->vectors)
            connection_close(r, c);
        else if (q->mark_ns && error == TIMEOUT)
            rest(r, &r->draining, c);
        else
            keep(r, c);
    }
    q->connection = NULL;
    if (q->mark_ns) {  /* it is whole: what came of the connection afterwards is no part of it */
        ended_ns = q->mark_ns;
        error = NO_ERROR;
    }
    q->error = error;
    q->error_number = number;
    q->detail = detail;
    q->ended_ns = ended_ns;
    q->end = (Delivery){.request = q, .bytes = q->bytes, .last = true};
    memset(&q->bytes, 0, sizeof q->bytes);
    queue_push(&r->delivered, &q->end);
}

/* ---- sending and receiving ---- */

static void connect_request(Receiver *r, Request *q, int64_t now);

static void send_again(Receiver *r, Request *q)
{
    /* The kept connection was closed by the server: what it announced can't be trusted any more. */
    atomic_store(&r->keep_alive, false);
    connection_close(r, q->connection);
    q->connection = NULL;
    q->resends++;
    q->vector_index = 0;
    q->vector_offset = 0;
    q->send_error = 0;
    connect_request(r, q, now_ns());
}

static void spill(Receiver *r, Request *q)
{
    Delivery *part = malloc(sizeof *part);
    if (!part)
        return;  /* then it grows until the next read */
    *part = (Delivery){.request = q, .bytes = q->bytes};
    memset(&q->bytes, 0, sizeof q->bytes);
    queue_push(&r->delivered, part);
}

/* Read until there is nothing more. An edge means "something new": a read that didn't fill the buffer has taken it
 * all, unless the other side's end (`closed`) waits behind it. */
static void receive(Receiver *r, Connection *c, bool closed)
{
    Request *q = c->request;
    for (;;) {
        ssize_t size = recv(c->fd, r->scratch, READ_BYTES, 0);
        int64_t now = now_ns();
        if (size < 0 && errno == EINTR)
            continue;
        if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (size <= 0) {
            int number = size ? errno : q->send_error;
            if (c->framing.place == TO_CLOSE && !size) {
                finish(r, q, NO_ERROR, 0, NULL, now);
            } else if (!q->answered && c->served) {
                send_again(r, q);
            } else if (number) {
                finish(r, q, RESET, number, NULL, now);
            } else {
                finish(r, q, END_OF_FILE, 0,
                       q->answered ? "the server closed the connection in the middle of its answer"
                                   : "the server closed the connection without an answer", now);
            }
            return;
        }
        uint32_t read_bytes = (uint32_t)size;
        q->answered = true;
        if (!bytes_append(&q->bytes, r->scratch, (size_t)size) || !bytes_add_reads(&q->bytes, &now, &read_bytes, 1)) {
            finish(r, q, ABORTED, ENOMEM, NULL, now);
            return;
        }
        const char *wrong = framing_feed(&c->framing, q->bytes.raw, q->bytes.size, (size_t)size, r->head_bytes);
        bool complete = !wrong && c->framing.place == COMPLETE;
        if (c->framing.marked && !q->mark_ns) {
            q->mark_ns = now;
            if (!complete)
                set_timer(r, q);
        }
        if (wrong || complete) {
            if (closed)  /* this event was the only one to say so */
                c->framing.keeps = false;
            finish(r, q, wrong ? MALFORMED : NO_ERROR, 0, wrong, now);
            return;
        }
        if (q->bytes.size > q->spill_bytes && c->framing.place != HEAD)
            spill(r, q);
        if (size < READ_BYTES && !closed)
            return;
    }
}

static void send_more(Receiver *r, Request *q)
{
    while (q->vector_index < q->vectors && !q->send_error) {
        struct iovec batch[16];
        int count = q->vectors - q->vector_index < 16 ? q->vectors - q->vector_index : 16;
        memcpy(batch, q->vector + q->vector_index, (size_t)count * sizeof *batch);
        batch[0].iov_base = (char *)batch[0].iov_base + q->vector_offset;
        batch[0].iov_len -= q->vector_offset;
        struct msghdr message = {.msg_iov = batch, .msg_iovlen = (size_t)count};
        ssize_t size = sendmsg(q->connection->fd, &message, MSG_NOSIGNAL);
        if (size < 0 && errno == EINTR)
            continue;
        if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (size < 0) {
            /* A server may answer (429, 413) and close before it has read the whole body: its answer is still read. */
            q->send_error = errno;
            receive(r, q->connection, true);
            return;
        }
        size_t sent = (size_t)size;
        for (int i = 0; i < count && sent >= batch[i].iov_len; i++) {
            sent -= batch[i].iov_len;
            q->vector_index++;
            q->vector_offset = 0;
        }
        q->vector_offset += sent;
    }
}

/* Its connection is open: send when due. */
static void open_request(Receiver *r, Request *q, int64_t now)
{
    Connection *c = q->connection;
    q->stage = now >= q->due_ns ? SENT : OPEN;
    set_timer(r, q);
    if (q->stage == OPEN)
        return;
    framing_init(&c->framing);
    q->reused = c->served > 0;
    q->sent_ns = now_ns();
    send_more(r, q);
    if (c->request == q && c->readable)  /* still its own: neither at its end nor sent again */
        receive(r, c, true);
}

static Connection *dial(Receiver *r, size_t address, int *number)
{
    const Address *to = &r->addresses[address];
    int one = 1, fd = socket(to->family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        *number = errno;
        return NULL;
    }
    if (to->family != AF_UNIX)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    Connection *c = calloc(1, sizeof *c);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
    if (c && (connect(fd, (const struct sockaddr *)&to->storage, to->length) == 0 || errno == EINPROGRESS) &&
        epoll_ctl(r->epoll, EPOLL_CTL_ADD, fd, &event) == 0) {
        c->fd = fd;
        c->address = address;
        return c;
    }
    *number = c ? errno : ENOMEM;
    free(c);
    close(fd);
    return NULL;
}

/* Connect to the addresses from `tried` on; epoll then says which way it went. `number`: how the last one failed. */
static void dial_on(Receiver *r, Request *q, int number, int64_t now)
{
    for (; q->tried < r->address_count; q->tried++) {
        Connection *c = dial(r, (r->preferred + q->tried) % r->address_count, &number);
        if (c) {
            c->request = q;
            q->connection = c;
            q->stage = CONNECTING;
            q->dialled_ns = now;
            set_timer(r, q);
            return;
        }
        if (number == EAGAIN && r->addresses[0].family == AF_UNIX) {
            q->stage = WAITING;
            q->connect_ns = now + UNIX_RETRY;
            set_timer(r, q);
            return;
        }
    }
    finish(r, q, CONNECT, number, NULL, now_ns());
}

static void connect_request(Receiver *r, Request *q, int64_t now)
{
    q->tried = 0;
    dial_on(r, q, 0, now);
}

static void connected(Receiver *r, Request *q, int64_t now)
{
    int64_t ahead = 2 * (now - q->dialled_ns);
    if (ahead > r->ahead_ns)
        r->ahead_ns = ahead < MOST_AHEAD ? ahead : MOST_AHEAD;
    r->preferred = q->connection->address;
    open_request(r, q, now);
}

/* Give it the connection that was used last, or a new one. */
static void start(Receiver *r, Request *q, int64_t now)
{
    rest_out(r, &r->idle, now);
    Connection *c = atomic_load(&r->keep_alive) ? r->idle.last : NULL;
    if (!c) {
        connect_request(r, q, now);
        return;
    }
    unrest(&r->idle, c);
    c->request = q;
    q->connection = c;
    open_request(r, q, now);
}

/* After `[DONE]`: what comes is no part of any answer, but may end the message, and then the connection is of use. */
static void drain(Receiver *r, Connection *c, bool closed)
{
    ssize_t size;
    do {
        size = recv(c->fd, r->scratch, READ_BYTES, 0);
        if (size < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (size <= 0 || framing_feed(&c->framing, r->scratch, (size_t)size, (size_t)size, r->head_bytes) ||
            c->framing.place == COMPLETE) {
            c->framing.keeps = c->framing.keeps && size > 0 && !closed;
            unrest(&r->draining, c);
            keep(r, c);
            return;
        }
    } while (size == READ_BYTES || closed);
}

static void on_event(Receiver *r, Connection *c, uint32_t events)
{
    Request *q = c->request;
    bool closed = events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR), readable = closed || events & EPOLLIN;
    if (c->fd < 0)
        return;
    if (!q) {
        if (c->draining && readable)
            drain(r, c, closed);
        else if (readable) {  /* an idle one has nothing to say, so this is its end */
            unrest(&r->idle, c);
            connection_close(r, c);
        }
    } else if (q->stage == CONNECTING) {
        int number = 0;
        socklen_t length = sizeof number;
        getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &number, &length);
        if (number) {
            connection_close(r, c);
            q->connection = NULL;
            q->tried++;
            dial_on(r, q, number, now_ns());
        } else if (events & EPOLLOUT) {
            c->readable = readable;
            connected(r, q, now_ns());
        }
    } else if (q->stage == OPEN) {
        if (readable && c->served) {  /* the kept connection was closed before its next request: nothing is lost */
            connection_close(r, c);
            q->connection = NULL;
            connect_request(r, q, now_ns());
        } else if (readable) {
            c->readable = true;
        }
    } else {
        if (events & EPOLLOUT)
            send_more(r, q);
        if (readable && c->request == q)
            receive(r, c, closed);
    }
}

/* ---- the thread ---- */

static void on_timer(Receiver *r, Request *q, int64_t now)
{
    if (q->mark_ns || now >= q->deadline_ns)
        finish(r, q, TIMEOUT, 0, NULL, now);
    else if (q->stage == WAITING)
        start(r, q, now);
    else
        open_request(r, q, now);
}

static void accept_request(Receiver *r, Request *q)
{
    int64_t now = now_ns();
    q->timer_ns = q->deadline_ns;
    q->connect_ns = q->due_ns - r->ahead_ns;
    if (!heap_add(r, q))
        finish(r, q, ABORTED, ENOMEM, NULL, now);
    else if (q->connect_ns <= now)
        start(r, q, now);
    else
        set_timer(r, q);
}

static int64_t next_timer(const Receiver *r)
{
    int64_t next = r->heap_size ? r->heap[0]->timer_ns : NEVER;
    const Resting *lists[] = {&r->idle, &r->draining};
    for (int i = 0; i < 2; i++)
        if (lists[i]->first && lists[i]->first->since + lists[i]->most_ns < next)
            next = lists[i]->first->since + lists[i]->most_ns;
    return next;
}

static int wait_events(Receiver *r, struct epoll_event *events, int64_t until_ns)
{
    int64_t left = until_ns == NEVER ? NEVER : until_ns - now_ns();
    if (left <= 0)
        return epoll_wait(r->epoll, events, EVENTS, 0);
#ifdef SYS_epoll_pwait2
    if (!r->coarse) {
        struct timespec t = {left / (1000 * MS), left % (1000 * MS)};
        long count = syscall(SYS_epoll_pwait2, r->epoll, events, EVENTS, left == NEVER ? NULL : &t, NULL, 0);
        if (count >= 0 || (errno != ENOSYS && errno != EPERM))
            return (int)count;
    }
#endif
    r->coarse = true;  /* Linux before 5.11 waits in whole milliseconds: the last of them is waited awake */
    return epoll_wait(r->epoll, events, EVENTS, left == NEVER ? -1 : left < MS * INT32_MAX ? (int)(left / MS) : INT32_MAX);
}

/* What to do next, in exchange for what was done. Returns whether there is anything. */
static bool trade(Receiver *r, Request **submitted, Request **cancelled, bool *end_all, bool *stop)
{
    bool settled = false, signal = false;
    Request *unsettled = NULL;
    pthread_mutex_lock(&r->lock);
    for (Delivery *d = r->delivered.first; d; d = d->next)
        if (d->last)
            settled = d->request->settled = true;
    if (r->delivered.first) {
        queue_move(&r->ready, &r->delivered);
        signal = !r->signalled;
        r->signalled = true;
    }
    if (settled)
        pthread_cond_broadcast(&r->settled);
    for (Request *q = r->cancelled; q; q = q->next_cancelled)
        if (!q->settled) {  /* those that are belong to Python again */
            q->next_doomed = unsettled;
            unsettled = q;
        }
    *cancelled = unsettled;
    *submitted = r->submitted;
    *end_all = r->aborting || r->stopping;
    *stop = r->stopping;
    r->submitted = r->cancelled = NULL;
    r->submitted_end = &r->submitted;
    r->aborting = false;
    r->asleep = !*submitted && !*cancelled && !*end_all;
    bool busy = !r->asleep;
    pthread_mutex_unlock(&r->lock);
    uint64_t one = 1;
    if (signal && write(r->signal, &one, sizeof one) < 0)
        abort();  /* an eventfd of ours can't be full */
    return busy;
}

/* A thread that wakes for microseconds asks for a short slice, so that a busy process (Python on the same core) makes
 * way for it at once: since Linux 6.12, without privileges. Elsewhere this does nothing. */
static void ask_for_short_slices(void)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } wanted = {.size = 48, .runtime = 100000};
#ifdef SYS_sched_setattr
    syscall(SYS_sched_setattr, 0, &wanted, 0);
#endif
    prctl(PR_SET_TIMERSLACK, 1000);
    prctl(PR_SET_NAME, "kvmark-receive");
}

static void *run(void *self)
{
    Receiver *r = self;
    struct epoll_event events[EVENTS];
    ask_for_short_slices();
    for (;;) {
        Request *submitted, *cancelled;
        bool end_all, stop, busy = trade(r, &submitted, &cancelled, &end_all, &stop);
        for (Request *q = submitted, *next; q; q = next) {
            next = q->next_submitted;
            accept_request(r, q);
        }
        for (Request *q = cancelled; q; q = q->next_doomed)
            if (q->heap_index != NOWHERE)
                finish(r, q, ABORTED, 0, "given up by the client", now_ns());
        while (end_all && r->heap_size)
            finish(r, r->heap[r->heap_size - 1], ABORTED, 0, "the client was told to stop", now_ns());
        if (stop)
            break;
        int64_t now = now_ns();
        while (r->heap_size && r->heap[0]->timer_ns <= now)
            on_timer(r, r->heap[0], now);
        rest_out(r, &r->idle, now);
        rest_out(r, &r->draining, now);
        int count = wait_events(r, events, busy || r->delivered.first ? 0 : next_timer(r));
        for (int i = 0; i < count; i++) {
            uint64_t wakes;
            if (events[i].data.ptr)
                on_event(r, events[i].data.ptr, events[i].events);
            else if (read(r->wake, &wakes, sizeof wakes) < 0)
                continue;
        }
        bury(r);
    }
    rest_out(r, &r->idle, NEVER);
    rest_out(r, &r->draining, NEVER);
    bury(r);
    Request *submitted, *cancelled;
    bool end_all, stop;
    trade(r, &submitted, &cancelled, &end_all, &stop);
    return NULL;
}

/* ---- for Python ---- */

static PyObject *array_type, *codes[2], *names[ERRORS], *fields[9];
enum { SENT_NS, ENDED_NS, READ_NS, READ_SIZES, RAW, ERROR, ERROR_DETAIL, REUSED, RESENDS };
static const char *const FIELD_NAMES[] = {
    "sent_ns", "ended_ns", "read_ns", "read_bytes", "raw", "error", "error_detail", "reused", "resends"};

static void request_dealloc(Request *q)
{
    for (Py_ssize_t i = 0; i < q->views; i++)
        PyBuffer_Release(&q->pieces[i]);
    free(q->pieces);
    free(q->vector);
    bytes_free(&q->bytes);
    bytes_free(&q->end.bytes);
    Py_XDECREF(q->greenlet);
    Py_XDECREF(q->exchange);
    PyObject_Free(q);
}

static PyMemberDef request_members[] = {
    {"greenlet", T_OBJECT, offsetof(Request, greenlet), READONLY, "who waits for it"},
    {"exchange", T_OBJECT, offsetof(Request, exchange), READONLY, "what is filled"},
    {"ended", T_BOOL, offsetof(Request, ended), READONLY, "whether the exchange holds its end"},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject Request_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "harness.traffic.wire._receiver.Request",
    .tp_doc = "A message under way. Made by Receiver.submit.",
    .tp_basicsize = sizeof(Request),
    .tp_dealloc = (destructor)request_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_members = request_members,
};

static int set_field(PyObject *exchange, int field, PyObject *value)
{
    if (!value)
        return -1;
    int code = PyObject_SetAttr(exchange, fields[field], value);
    Py_DECREF(value);
    return code;
}

static PyObject *new_array(int code, const void *data, size_t size)
{
    PyObject *bytes = PyBytes_FromStringAndSize(data, (Py_ssize_t)size);
    if (!bytes)
        return NULL;
    PyObject *arguments[] = {codes[code], bytes};
    PyObject *array = PyObject_Vectorcall(array_type, arguments, 2, NULL);
    Py_DECREF(bytes);
    return array;
}

static PyObject *detail_of(const Request *q)
{
    if (q->detail)
        return PyUnicode_FromString(q->detail);
    if (!q->error_number)
        return Py_NewRef(Py_None);
    PyObject *error = PyObject_CallFunction(PyExc_OSError, "is", q->error_number, strerror(q->error_number));
    PyObject *text = error ? PyUnicode_FromFormat("%s: %S", Py_TYPE(error)->tp_name, error) : NULL;
    Py_XDECREF(error);
    return text;
}

/* Put what was delivered into the exchange. */
static int hand_over(Delivery *d)
{
    Request *q = d->request;
    PyObject *x = q->exchange;
    const Bytes *b = &d->bytes;
    if (set_field(x, RAW, PyByteArray_FromStringAndSize(b->raw, (Py_ssize_t)b->size)) ||
        set_field(x, READ_NS, new_array(0, b->read_ns, b->reads * sizeof *b->read_ns)) ||
        set_field(x, READ_SIZES, new_array(1, b->read_bytes, b->reads * sizeof *b->read_bytes)) ||
        (q->sent_ns && set_field(x, SENT_NS, PyLong_FromLongLong(q->sent_ns))))
        return -1;
    if (!d->last)
        return 0;
    if (set_field(x, ENDED_NS, PyLong_FromLongLong(q->ended_ns)) ||
        (q->reused && set_field(x, REUSED, Py_NewRef(Py_True))) ||
        (q->resends && set_field(x, RESENDS, PyLong_FromUnsignedLong(q->resends))))
        return -1;
    if (q->error && (set_field(x, ERROR, Py_NewRef(names[q->error])) || set_field(x, ERROR_DETAIL, detail_of(q))))
        return -1;
    return 0;
}

/* Fill the exchange and return the request (a new reference; at its end, the one that held it while under way). */
static PyObject *take_delivery(Delivery *d)
{
    Request *q = d->request;
    bool last = d->last;
    if (hand_over(d))
        PyErr_WriteUnraisable((PyObject *)q);  /* no memory; whoever waits must be woken nevertheless */
    bytes_free(&d->bytes);
    if (!last) {
        free(d);
        return Py_NewRef((PyObject *)q);
    }
    q->ended = 1;
    for (; q->views; q->views--)  /* a long prompt's memory */
        PyBuffer_Release(&q->pieces[q->views - 1]);
    return (PyObject *)q;
}

static void wake(Receiver *r, bool asleep)
{
    uint64_t one = 1;
    if (asleep && write(r->wake, &one, sizeof one) < 0)
        abort();  /* an eventfd of ours can't be full */
}

static PyObject *receiver_submit(Receiver *r, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 7 || !PyTuple_Check(arguments[3])) {
        PyErr_SetString(PyExc_TypeError, "submit(greenlet, exchange, head, body, due_ns, deadline_ns, spill_bytes)");
        return NULL;
    }
    if (!r->running) {
        PyErr_SetString(PyExc_RuntimeError, "the receiver is closed");
        return NULL;
    }
    PyObject *body = arguments[3];
    int64_t due_ns = PyLong_AsLongLong(arguments[4]), deadline_ns = PyLong_AsLongLong(arguments[5]);
    size_t spill_bytes = PyLong_AsSize_t(arguments[6]);
    if (PyErr_Occurred())
        return NULL;
    Request *q = PyObject_New(Request, &Request_type);
    if (!q)
        return NULL;
    memset((char *)q + sizeof(PyObject), 0, sizeof *q - sizeof(PyObject));
    Py_ssize_t pieces = 1 + PyTuple_GET_SIZE(body);
    q->pieces = malloc((size_t)pieces * sizeof *q->pieces);
    q->vector = malloc((size_t)pieces * sizeof *q->vector);
    if (!q->pieces || !q->vector) {
        Py_DECREF(q);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < pieces; i++) {
        Py_buffer *view = &q->pieces[i];
        if (PyObject_GetBuffer(i ? PyTuple_GET_ITEM(body, i - 1) : arguments[2], view, PyBUF_SIMPLE)) {
            Py_DECREF(q);
            return NULL;
        }
        q->views++;
        if (view->len)
            q->vector[q->vectors++] = (struct iovec){view->buf, (size_t)view->len};
    }
    q->greenlet = Py_NewRef(arguments[0]);
    q->exchange = Py_NewRef(arguments[1]);
    q->due_ns = due_ns;
    q->deadline_ns = deadline_ns;
    q->spill_bytes = spill_bytes ? spill_bytes : SIZE_MAX;
    q->heap_index = NOWHERE;
    Py_INCREF(q);
    pthread_mutex_lock(&r->lock);
    *r->submitted_end = q;
    r->submitted_end = &q->next_submitted;
    bool asleep = r->asleep;
    r->asleep = false;
    pthread_mutex_unlock(&r->lock);
    wake(r, asleep);
    return (PyObject *)q;
}

static PyObject *receiver_gather(Receiver *r, PyObject *Py_UNUSED(none))
{
    uint64_t signals;
    ssize_t size = read(r->signal, &signals, sizeof signals);  /* non-blocking; before the rest, or a signal is lost */
    (void)size;
    pthread_mutex_lock(&r->lock);
    r->signalled = false;
    queue_move(&r->taken, &r->ready);
    pthread_mutex_unlock(&r->lock);
    Py_RETURN_NONE;
}

static PyObject *receiver_take(Receiver *r, PyObject *Py_UNUSED(none))
{
    Delivery *d = r->taken.first;
    if (!d)
        Py_RETURN_NONE;
    r->taken.first = d->next;
    if (!d->next)
        queue_init(&r->taken);
    return take_delivery(d);
}

/* Join the deliveries of `q` in `queue` to `all`; returns its end, if that is there. */
static Delivery *extract(Queue *queue, const Request *q, Bytes *all)
{
    Queue others;
    Delivery *end = NULL, *next;
    queue_init(&others);
    for (Delivery *d = queue->first; d; d = next) {
        next = d->next;
        if (d->request != q) {
            queue_push(&others, d);
            continue;
        }
        if (bytes_append(all, d->bytes.raw, d->bytes.size))
            bytes_add_reads(all, d->bytes.read_ns, d->bytes.read_bytes, d->bytes.reads);
        bytes_free(&d->bytes);
        if (d->last)
            end = d;
        else
            free(d);
    }
    queue_init(queue);
    queue_move(queue, &others);
    return end;
}

static PyObject *receiver_cancel(Receiver *r, PyObject *request)
{
    Request *q = (Request *)request;
    if (Py_TYPE(request) != &Request_type) {
        PyErr_SetString(PyExc_TypeError, "not a Request");
        return NULL;
    }
    if (q->ended)
        Py_RETURN_NONE;
    /* With the GIL, which the thread doesn't need to answer within microseconds. */
    pthread_mutex_lock(&r->lock);
    bool asleep = r->asleep && !q->settled;
    if (!q->settled) {
        q->next_cancelled = r->cancelled;
        r->cancelled = q;
        r->asleep = false;
    }
    wake(r, asleep);
    while (!q->settled)
        pthread_cond_wait(&r->settled, &r->lock);
    Bytes all = {0};
    Delivery *end = extract(&r->taken, q, &all), *ready = extract(&r->ready, q, &all);
    pthread_mutex_unlock(&r->lock);
    end = end ? end : ready;
    end->bytes = all;
    Py_DECREF(take_delivery(end));
    Py_RETURN_NONE;
}

static PyObject *receiver_abort(Receiver *r, PyObject *Py_UNUSED(none))
{
    pthread_mutex_lock(&r->lock);
    r->aborting = true;
    bool asleep = r->asleep;
    r->asleep = false;
    pthread_mutex_unlock(&r->lock);
    wake(r, asleep);
    Py_RETURN_NONE;
}

/* Stop the thread; what was under way is ready to be taken, as aborted. In a child of fork there is no thread, and the
 * lock may be held for ever: only what the kernel counts is given back there. */
static PyObject *receiver_close(Receiver *r, PyObject *Py_UNUSED(none))
{
    if (!r->running)
        Py_RETURN_NONE;
    r->running = false;
    if (r->process == getpid()) {
        pthread_mutex_lock(&r->lock);
        r->stopping = true;
        pthread_mutex_unlock(&r->lock);
        wake(r, true);
        pthread_join(r->thread, NULL);
        free(r->heap);
        free(r->scratch);
        r->heap = NULL;
        r->scratch = NULL;
        queue_move(&r->taken, &r->ready);
    }
    close(r->epoll);
    close(r->wake);
    close(r->signal);
    Py_RETURN_NONE;
}

static void receiver_dealloc(Receiver *r)
{
    Py_XDECREF(receiver_close(r, NULL));
    for (Delivery *d = r->taken.first, *next; d && r->process == getpid(); d = next) {
        Request *q = d->request;
        next = d->next;
        bytes_free(&d->bytes);
        if (d->last)
            Py_DECREF(q);
        else
            free(d);
    }
    PyObject_Free(r);
}

static int read_addresses(Receiver *r, PyObject *list)
{
    if (PyList_GET_SIZE(list) < 1) {
        PyErr_SetString(PyExc_ValueError, "no address");
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list) && i < MAX_ADDRESSES; i++) {
        Address *a = &r->addresses[i];
        const char *host, *port;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "iyy", &a->family, &host, &port))
            return -1;
        if (a->family == AF_UNIX) {
            struct sockaddr_un *to = (struct sockaddr_un *)&a->storage;
            if (strlen(host) >= sizeof to->sun_path) {
                PyErr_SetString(PyExc_ValueError, "the socket's path is too long");
                return -1;
            }
            to->sun_family = AF_UNIX;
            strcpy(to->sun_path, host);
            a->length = sizeof *to;
        } else {
            struct addrinfo *found, asked = {.ai_family = a->family, .ai_socktype = SOCK_STREAM,
                                             .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
            int code = getaddrinfo(host, port, &asked, &found);
            if (code) {
                PyErr_Format(PyExc_ValueError, "%s: %s", host, gai_strerror(code));
                return -1;
            }
            memcpy(&a->storage, found->ai_addr, found->ai_addrlen);
            a->length = found->ai_addrlen;
            freeaddrinfo(found);
        }
        r->address_count++;
    }
    return 0;
}

static int start_thread(Receiver *r)
{
    struct epoll_event event = {.events = EPOLLIN};
    r->epoll = epoll_create1(EPOLL_CLOEXEC);
    r->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    r->signal = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    r->scratch = malloc(READ_BYTES);
    int code = r->epoll < 0 || r->wake < 0 || r->signal < 0 || !r->scratch ||
               epoll_ctl(r->epoll, EPOLL_CTL_ADD, r->wake, &event) ? errno : 0;
    if (!code) {
        sigset_t all, before;  /* signals are for Python's main thread */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        code = pthread_create(&r->thread, NULL, run, r);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    if (!code) {
        r->running = true;
        return 0;
    }
    int made[] = {r->epoll, r->wake, r->signal};
    for (int i = 0; i < 3; i++)
        if (made[i] >= 0)
            close(made[i]);
    free(r->scratch);
    errno = code;
    PyErr_SetFromErrno(PyExc_OSError);
    return -1;
}

static PyObject *receiver_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *words[] = {"addresses", "keep_alive", "idle_ns", "finish_ns", "drain_ns", "head_bytes", NULL};
    PyObject *addresses;
    int keep_alive;
    long long idle_ns, finish_ns, drain_ns;
    Py_ssize_t head_bytes;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!pLLLn", words, &PyList_Type, &addresses, &keep_alive,
                                     &idle_ns, &finish_ns, &drain_ns, &head_bytes))
        return NULL;
    Receiver *r = (Receiver *)type->tp_alloc(type, 0);
    if (!r)
        return NULL;
    r->process = getpid();
    r->idle.most_ns = idle_ns;
    r->draining.most_ns = drain_ns;
    r->finish_ns = finish_ns;
    r->head_bytes = (size_t)head_bytes;
    r->ahead_ns = LEAST_AHEAD;
    r->submitted_end = &r->submitted;
    queue_init(&r->ready);
    queue_init(&r->taken);
    queue_init(&r->delivered);
    atomic_init(&r->keep_alive, keep_alive);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->settled, NULL);
    if (read_addresses(r, addresses) || start_thread(r)) {
        Py_DECREF(r);
        return NULL;
    }
    return (PyObject *)r;
}

static PyObject *receiver_fileno(Receiver *r, PyObject *Py_UNUSED(none))
{
    return PyLong_FromLong(r->signal);
}

static PyObject *receiver_keep_alive(Receiver *r, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(atomic_load(&r->keep_alive));
}

static PyMethodDef receiver_methods[] = {
    {"submit", (PyCFunction)(void (*)(void))receiver_submit, METH_FASTCALL,
     "submit(greenlet, exchange, head, body, due_ns, deadline_ns, spill_bytes) -> Request\n\n"
     "Send a message; due_ns 0: now; spill_bytes 0: never spilled."},
    {"fileno", (PyCFunction)receiver_fileno, METH_NOARGS, "Readable when there is something to gather."},
    {"gather", (PyCFunction)receiver_gather, METH_NOARGS, "Get what is there to be taken."},
    {"take", (PyCFunction)receiver_take, METH_NOARGS,
     "Fill the exchange of the next request that has a part or its end; return the request, or None."},
    {"cancel", (PyCFunction)receiver_cancel, METH_O, "End a request as aborted, now, and fill its exchange."},
    {"abort", (PyCFunction)receiver_abort, METH_NOARGS, "End all that is under way as aborted."},
    {"close", (PyCFunction)receiver_close, METH_NOARGS, "Abort, close every connection and end the thread."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef receiver_properties[] = {
    {"keep_alive", (getter)receiver_keep_alive, NULL, "Whether connections are used again.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject Receiver_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "harness.traffic.wire._receiver.Receiver",
    .tp_doc = "A thread that talks to one endpoint. addresses: [(family, host, port)], host and port as bytes.",
    .tp_basicsize = sizeof(Receiver),
    .tp_new = receiver_new,
    .tp_dealloc = (destructor)receiver_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = receiver_methods,
    .tp_getset = receiver_properties,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "harness.traffic.wire._receiver",
    .m_doc = "Sends and receives in a thread of its own, without the GIL.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__receiver(void)
{
    PyObject *array = PyImport_ImportModule("array");
    array_type = array ? PyObject_GetAttrString(array, "array") : NULL;
    Py_XDECREF(array);
    codes[0] = PyUnicode_InternFromString("q");
    codes[1] = PyUnicode_InternFromString("I");
    for (int i = 1; i < ERRORS; i++)
        names[i] = PyUnicode_InternFromString(ERROR_NAMES[i]);
    for (int i = 0; i < 9; i++)
        fields[i] = PyUnicode_InternFromString(FIELD_NAMES[i]);
    if (PyErr_Occurred() || PyType_Ready(&Request_type) || PyType_Ready(&Receiver_type))
        return NULL;
    PyObject *self = PyModule_Create(&module);
    if (self && PyModule_AddObjectRef(self, "Receiver", (PyObject *)&Receiver_type)) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}
