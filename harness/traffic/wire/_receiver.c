/* The compiled client: sends and receives in a thread of its own (`_loop.c`). Here: what Python sees of it. */

#include "_receiver.h"

#include <structmember.h>

#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/un.h>
#include <unistd.h>

static const char *const ERROR_NAMES[ERRORS] = {
    NULL, "connect", "timeout", "reset", "eof", "malformed_http", "aborted"};

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
        code = pthread_create(&r->thread, NULL, receiver_run, r);
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
