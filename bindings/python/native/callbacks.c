/* The library's callbacks in Python: a transport written in Python, and the log. Each takes the GIL for itself; an
 * exception becomes a status here and the cause of the error that the call raises. */
#include "native.h"

/* `user` of the transport's functions. */
typedef struct transport {
  PyObject *object;
  int32_t memory;
} transport;

/* A request: what Python's send or receive returned, and the view of the data that it was given. */
typedef struct request {
  PyObject *object, *view;
} request;

static int64_t integer_attribute(PyObject *object, const char *name, int64_t otherwise) {
  PyObject *const value = PyObject_GetAttrString(object, name);
  if (value && PyLong_Check(value)) otherwise = PyLong_AsLongLong(value);
  Py_XDECREF(value);
  PyErr_Clear();
  return otherwise;
}

/* Whether what is set is no error but an interrupt: KeyboardInterrupt, SystemExit. */
static int is_interrupt(void) { return PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception); }

/* The status of the exception that is set: liblasp.PeerLost and liblasp.Aborted say theirs, an interrupt aborts,
 * others are a failed transport. */
static lasp_status status_of_exception(int32_t *lost_rank) {
  if (is_interrupt()) {
    native_keep_interrupt();
    return LASP_ERROR_ABORTED;
  }
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  const int64_t status = value ? integer_attribute(value, "status", LASP_ERROR_TRANSPORT) : LASP_ERROR_TRANSPORT;
  if (lost_rank && value) *lost_rank = (int32_t)integer_attribute(value, "rank", -1);
  PyErr_Restore(type, value, traceback);
  native_keep_cause();
  return status == LASP_ERROR_PEER_LOST || status == LASP_ERROR_ABORTED ? (lasp_status)status
                                                                        : LASP_ERROR_TRANSPORT;
}

static PyObject *view_of(const transport *self, void *data, uint64_t bytes, int writable) {
  if (self->memory == LASP_DEVICE_CUDA) {
    return Py_BuildValue("KK", (unsigned long long)(uintptr_t)data, (unsigned long long)bytes);
  }
  return PyMemoryView_FromMemory((char *)data, (Py_ssize_t)bytes, writable ? PyBUF_WRITE : PyBUF_READ);
}

static lasp_status start(void *user, const char *method, void *data, uint64_t bytes, int writable, int32_t peer,
                         int32_t tag, lasp_stream stream, void **out) {
  const transport *const self = (const transport *)user;
  const PyGILState_STATE gil = PyGILState_Ensure();
  lasp_status status = LASP_OK;
  request *const started = (request *)PyMem_Calloc(1, sizeof *started);
  if (!started) PyErr_NoMemory();
  if (started) started->view = view_of(self, data, bytes, writable);
  if (started && started->view) {
    started->object = PyObject_CallMethod(self->object, method, "OiiK", started->view, (int)peer, (int)tag,
                                          (unsigned long long)(uintptr_t)stream);
  }
  if (started && started->object) {
    *out = started;
  } else {
    status = status_of_exception(NULL);
    if (started) Py_XDECREF(started->view);
    PyMem_Free(started);
  }
  PyGILState_Release(gil);
  return status;
}

static lasp_status transport_send(void *user, const void *data, uint64_t bytes, int32_t peer, int32_t tag,
                                  lasp_stream stream, void **out) {
  return start(user, "send", (void *)(uintptr_t)data, bytes, 0, peer, tag, stream, out);
}

static lasp_status transport_receive(void *user, void *data, uint64_t bytes, int32_t peer, int32_t tag,
                                     lasp_stream stream, void **out) {
  return start(user, "receive", data, bytes, 1, peer, tag, stream, out);
}

static lasp_status transport_test(void *user, void *handle, int32_t *done) {
  const PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *const answer =
      PyObject_CallMethod(((const transport *)user)->object, "test", "O", ((const request *)handle)->object);
  const int truth = answer ? PyObject_IsTrue(answer) : -1;
  lasp_status status = LASP_OK;
  if (truth < 0) {
    status = status_of_exception(NULL);
  } else {
    *done = truth;
  }
  Py_XDECREF(answer);
  PyGILState_Release(gil);
  return status;
}

/* Ends a request. Its view is closed, so that Python code which kept it cannot touch memory that is gone. */
static void end_request(request *ended) {
  if (PyMemoryView_Check(ended->view)) {
    PyObject *const released = PyObject_CallMethod(ended->view, "release", NULL);
    Py_XDECREF(released);
    PyErr_Clear();
  }
  Py_DECREF(ended->view);
  Py_DECREF(ended->object);
  PyMem_Free(ended);
}

static lasp_status transport_wait(void *user, void *handle, int64_t time_limit_ms, int32_t *lost_rank) {
  const PyGILState_STATE gil = PyGILState_Ensure();
  lasp_status status = LASP_OK;
  PyObject *const answer = PyObject_CallMethod(((const transport *)user)->object, "wait", "OL",
                                               ((const request *)handle)->object, (long long)time_limit_ms);
  if (answer) {
    end_request((request *)handle);
    Py_DECREF(answer);
  } else {
    status = status_of_exception(lost_rank);
  }
  PyGILState_Release(gil);
  return status;
}

/* Functions that cannot report: what they raise is shown as Python shows what a destructor raises. An interrupt
 * that comes in one of them is not lost. */
static void finish(PyObject *answer, PyObject *object) {
  if (!answer && is_interrupt()) {
    native_keep_interrupt();
  } else if (!answer) {
    PyErr_WriteUnraisable(object);
  }
  Py_XDECREF(answer);
}

static void transport_cancel(void *user, void *handle) {
  const PyGILState_STATE gil = PyGILState_Ensure();
  const transport *const self = (const transport *)user;
  finish(PyObject_CallMethod(self->object, "cancel", "O", ((const request *)handle)->object), self->object);
  end_request((request *)handle);
  PyGILState_Release(gil);
}

static void transport_abort(void *user, int32_t lost_rank) {
  const PyGILState_STATE gil = PyGILState_Ensure();
  const transport *const self = (const transport *)user;
  finish(PyObject_CallMethod(self->object, "abort", "i", (int)lost_rank), self->object);
  PyGILState_Release(gil);
}

static void transport_destroy(void *user) {
  const PyGILState_STATE gil = PyGILState_Ensure();
  transport *const self = (transport *)user;
  finish(PyObject_CallMethod(self->object, "close", NULL), self->object);
  Py_DECREF(self->object);
  PyMem_Free(self);
  PyGILState_Release(gil);
}

lasp_status native_comm_create(PyObject *object, const char *name, int32_t rank, int32_t nranks,
                               int32_t local_ranks, int32_t memory, double latency_us, double bandwidth_gbs,
                               lasp_comm **comm) {
  transport *const self = (transport *)PyMem_Calloc(1, sizeof *self);
  if (!self) return LASP_ERROR_OUT_OF_MEMORY;
  lasp_transport table = LASP_TRANSPORT_INIT;
  table.name = name, table.rank = rank, table.nranks = nranks, table.local_ranks = local_ranks;
  table.memory = memory, table.latency_us = latency_us, table.bandwidth_gbs = bandwidth_gbs;
  table.send = transport_send, table.receive = transport_receive, table.test = transport_test;
  table.wait = transport_wait, table.cancel = transport_cancel, table.abort = transport_abort;
  table.destroy = transport_destroy;
  self->object = object, self->memory = memory;
  Py_INCREF(object);
  const lasp_status status = lasp_comm_create_custom(&table, self, comm);
  if (status != LASP_OK) {
    Py_DECREF(object);
    PyMem_Free(self);
  }
  return status;
}

static void log_message(void *user, int32_t level, const char *message) {
  const PyGILState_STATE gil = PyGILState_Ensure();
  finish(PyObject_CallFunction((PyObject *)user, "is", (int)level, message), (PyObject *)user);
  PyGILState_Release(gil);
}

void native_set_log(lasp_context_options *options, PyObject *callable) {
  options->log = log_message;
  options->log_user = callable;
}

static int32_t look_at_signals(void *user) {
  if ((unsigned long)(uintptr_t)user != PyThread_get_thread_ident()) return 0;
  const PyGILState_STATE gil = PyGILState_Ensure();
  if (!native_is_interrupting() && PyErr_CheckSignals() != 0) native_keep_interrupt();
  const int32_t interrupted = native_is_interrupting();
  PyGILState_Release(gil);
  return interrupted;
}

void native_set_interrupted(lasp_context_options *options, unsigned long long main_thread) {
  options->interrupted = look_at_signals;
  options->interrupted_user = (void *)(uintptr_t)main_thread;
}
