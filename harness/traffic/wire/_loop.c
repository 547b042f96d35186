/* The thread that sends requests at their time and receives the answers, without Python's GIL: what it measures doesn't
 * wait for Python, and Python is woken once a request, not once a token.
 *
 * Sockets are watched edge-triggered and registered once, so a read costs one recv and its share of an epoll_wait.
 */

#include "_receiver.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MS INT64_C(1000000)
#define NEVER INT64_MAX
#define EVENTS 64             /* handled between two looks at the clock: a due request waits for no more reads */
#define MOST_AHEAD (500 * MS)
#define UNIX_RETRY (1 * MS)   /* a Unix socket's full backlog can't be waited for with epoll */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static const char STOPPED[] = "the client was told to stop";

/* ---- received bytes ---- */

bool bytes_append(Bytes *bytes, const char *data, size_t size)
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

bool bytes_add_reads(Bytes *bytes, const int64_t *read_ns, const uint32_t *read_bytes, size_t count)
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

void bytes_free(Bytes *bytes)
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

static bool has_unread(const Connection *c)
{
    char byte;
    return recv(c->fd, &byte, 1, MSG_PEEK) >= 0;
}

/* Its connection is open: send when due. */
static void open_request(Receiver *r, Request *q, int64_t now)
{
    Connection *c = q->connection;
    q->stage = now >= q->due_ns ? SENT : OPEN;
    set_timer(r, q);
    if (q->stage == OPEN)
        return;
    if (c->served && has_unread(c)) {  /* closed, or more than the answer before: neither is this request's */
        connection_close(r, c);
        q->connection = NULL;
        connect_request(r, q, now);
        return;
    }
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

void *receiver_run(void *receiver)
{
    Receiver *r = receiver;
    struct epoll_event events[EVENTS];
    ask_for_short_slices();
    for (;;) {
        Request *submitted, *cancelled;
        bool end_all, stop, busy = trade(r, &submitted, &cancelled, &end_all, &stop);
        for (Request *q = submitted, *next; q; q = next) {
            next = q->next_submitted;
            if (end_all)
                finish(r, q, ABORTED, 0, STOPPED, now_ns());
            else
                accept_request(r, q);
        }
        for (Request *q = cancelled; q; q = q->next_doomed)
            if (q->heap_index != NOWHERE)
                finish(r, q, ABORTED, 0, "given up by the client", now_ns());
        while (end_all && r->heap_size)
            finish(r, r->heap[r->heap_size - 1], ABORTED, 0, STOPPED, now_ns());
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
