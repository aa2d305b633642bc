/* From a status to a Python exception. The classes live in lasp/errors.py, which registers a hook here. */
#include "native.h"

#include <stdarg.h>

static PyObject *error_hook;
/* The exception that a callback raised inside the call this thread is in. `interrupting`: it ended the call, or is
 * to, and is what the call raises (KeyboardInterrupt); else it is the cause of the error that the call raises. */
static _Thread_local PyObject *cause;
static _Thread_local int interrupting;

PyObject *native_set_error_hook(PyObject *hook) {
  Py_INCREF(hook);
  Py_XDECREF(error_hook);
  error_hook = hook;
  Py_RETURN_NONE;
}

void native_keep_cause(void) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (value && traceback) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  Py_XDECREF(cause);
  cause = value;
}

void native_keep_interrupt(void) {
  if (interrupting) { /* the first one counts */
    PyErr_Clear();
  } else {
    native_keep_cause();
    interrupting = 1;
  }
}

int native_is_interrupting(void) { return interrupting; }

/* Raises what interrupted the call, with `error`, the library's, as its context. Takes both references. */
static void raise_interrupt(PyObject *interrupt, PyObject *error) {
  if (error && error != interrupt) {
    PyException_SetContext(interrupt, error);
  } else {
    Py_XDECREF(error);
  }
  PyObject *const type = (PyObject *)Py_TYPE(interrupt);
  Py_INCREF(type);
  PyErr_Restore(type, interrupt, PyException_GetTraceback(interrupt)); /* PyErr_SetObject has contexts of its own */
}

PyObject *native_raise(lasp_status status, const char *sentence) {
  PyObject *const kept = cause;
  const int is_interrupt = interrupting;
  cause = NULL, interrupting = 0;
  if (!sentence) sentence = lasp_last_error();
  PyObject *error = NULL;
  if (error_hook) {
    PyObject *const reason = kept && !is_interrupt ? kept : Py_None;
    error = PyObject_CallFunction(error_hook, "isO", (int)status, sentence, reason);
  } else {
    PyErr_Format(PyExc_RuntimeError, "%s: %s", lasp_status_name(status), sentence);
  }
  if (is_interrupt) {
    PyErr_Clear();
    raise_interrupt(kept, error);
    return NULL;
  }
  if (error) {
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
  }
  Py_XDECREF(kept);
  return NULL;
}

int native_end_call(lasp_status status) {
  if (status != LASP_OK) {
    native_raise(status, NULL);
    return -1;
  }
  PyObject *const kept = cause;
  const int is_interrupt = interrupting;
  cause = NULL, interrupting = 0;
  if (is_interrupt) { /* it came too late to end the call */
    raise_interrupt(kept, NULL);
    return -1;
  }
  Py_XDECREF(kept);
  return 0;
}

PyObject *native_refuse(lasp_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  PyObject *const text = PyUnicode_FromFormatV(format, arguments);
  va_end(arguments);
  if (!text) return NULL;
  PyErr_Clear();
  const char *const sentence = PyUnicode_AsUTF8AndSize(text, NULL);
  if (sentence) native_raise(status, sentence);
  Py_DECREF(text);
  return NULL;
}
