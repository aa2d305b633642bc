/* From a status to a Python exception. The classes live in lasp/errors.py, which registers a hook here. */
#include "native.h"

#include <stdarg.h>

static PyObject *error_hook;
/* The exception that a callback raised inside the call this thread is in. */
static _Thread_local PyObject *cause;

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

void native_drop_cause(void) { Py_CLEAR(cause); }

PyObject *native_raise(lasp_status status, const char *sentence) {
  PyObject *const reason = cause ? cause : Py_None;
  cause = NULL;
  if (reason == Py_None) Py_INCREF(reason);
  if (!sentence) sentence = lasp_last_error();
  if (!error_hook) {
    PyErr_Format(PyExc_RuntimeError, "%s: %s", lasp_status_name(status), sentence);
  } else {
    PyObject *const error = PyObject_CallFunction(error_hook, "isO", (int)status, sentence, reason);
    if (error) {
      PyErr_SetObject((PyObject *)Py_TYPE(error), error);
      Py_DECREF(error);
    }
  }
  Py_DECREF(reason);
  return NULL;
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
