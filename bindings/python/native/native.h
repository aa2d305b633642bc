/* What the hand-written parts of the extension module share. Written to Python's limited API, so that one build of
 * the module can serve several versions of Python. */
#pragma once

#ifndef PY_SSIZE_T_CLEAN
#define PY_SSIZE_T_CLEAN
#endif
#include <Python.h>
#include <lasp/lasp.h>

/* ---- errors.c ---- */

/* Sets the Python exception that stands for `status`; NULL takes the library's own sentence. Always returns NULL.
 */
PyObject *native_raise(lasp_status status, const char *sentence);
/* The same with a sentence of the binding's own, formatted as PyErr_Format does. */
PyObject *native_refuse(lasp_status status, const char *format, ...);
/* Keeps the Python exception that is set now as the cause of the next error that this thread raises. */
void native_keep_cause(void);
/* Keeps it as what this thread's call raises, in place of the library's error: an interrupt. */
void native_keep_interrupt(void);
int native_is_interrupting(void);
/* The end of a call of the library's: 0, or raises and returns -1. Needs the GIL. */
int native_end_call(lasp_status status);
/* hook(status, sentence, cause) -> exception. */
PyObject *native_set_error_hook(PyObject *hook);

/* ---- arrays.c ---- */

enum { NATIVE_MAX_DIMS = 4, NATIVE_BYTES = -1, NATIVE_OTHER = -2 };

/* What an array must look like to be an argument. */
typedef struct native_spec {
  const char *name;
  int32_t absent; /* 1: must be None */
  int32_t dtype;  /* LASP_FLOAT32 ..., or NATIVE_BYTES: a block of bytes without a shape */
  int32_t writable;
  int32_t dims;
  int64_t shape[NATIVE_MAX_DIMS];
  int64_t strides[NATIVE_MAX_DIMS]; /* in elements */
} native_spec;

/* Borrowed memory of a Python object: released, not freed. */
typedef struct native_array {
  lasp_buffer memory;
  Py_buffer view;  /* view.obj is NULL when the object came through the hook */
  PyObject *owner; /* what keeps the memory alive in that case */
} native_array;

/* What was found out about an array, whichever way; strides in elements. */
typedef struct native_found {
  void *data;
  int32_t device, device_index;
  int32_t dtype, dims;
  Py_ssize_t itemsize;
  int64_t shape[NATIVE_MAX_DIMS];
  int64_t strides[NATIVE_MAX_DIMS];
} native_found;

/* Takes `object` as `spec` says, or raises and returns -1. None gives {NULL, 0}. `vouched`: see NATIVE_VOUCHED. */
int native_array_take(native_array *array, PyObject *object, const native_spec *spec, int32_t device,
                      int32_t device_index, int vouched);
void native_array_release(native_array *array);
PyObject *native_tuple_of(const int64_t *values, int32_t count);
/* hook(object, name) -> (address, dtype, device, device_index, shape, strides in elements, readonly, owner). */
PyObject *native_set_array_hook(PyObject *hook);
/* (dtype name, shape, strides in elements, address) of an object with the buffer protocol; None where it has none.
 */
PyObject *native_read_buffer(PyObject *object);

/* ---- dlpack.c ---- */

/* The tuple of the array hook out of a DLPack capsule. */
PyObject *native_read_dlpack(PyObject *capsule);
/* Makes a type known whose exchange API the capsule holds; True where it can be used. */
PyObject *native_learn_type(PyObject *type, PyObject *capsule);
/* Reads an object of a known type: 1, or 0 where it must be looked at by other means. Never raises. */
int native_exchange_read(PyObject *object, native_found *found);
/* Whether torch's tensor of a known type is what its memory says, no more: no lazy negation, no gradient that
 * autograd would miss. */
int native_is_plain(PyObject *object);
int native_is_negated(PyObject *object);

/* ---- recents.c ---- */

/* A Recents: values kept by what tensors look like, and found again. */
PyObject *native_recents_create(void);
int native_add_recents_type(void);

/* ---- kept.c ---- */

enum { NATIVE_MAX_CACHES = 4 };
/* A state cache that a plan keeps, and the framework whose arrays it is for. */
typedef struct native_own_cache {
  const void *data; /* NULL where the plan needs none */
  char framework[24];
} native_own_cache;
/* What a plan's latest forward left in which cache. All zero: no forward has run. */
typedef struct native_kept {
  int written; /* 1: the latest forward left its states in `cache`, the plan's own or one that was given */
  const void *cache;
  int own_count;
  native_own_cache own[NATIVE_MAX_CACHES];
} native_kept;

/* 0, or -1 where there is no room. */
int native_kept_add(native_kept *kept, const void *data, const char *framework);
void native_kept_after_forward(native_kept *kept, const void *cache, lasp_status status);
/* 0, or raises and returns -1 where `cache` is one of the plan's own and does not hold its latest forward's states.
 */
int native_kept_check(const native_kept *kept, const void *cache, const char *call);

/* ---- passes.c ---- */

/* What is said to a pass with its arrays. Vouched: the caller has seen to torch's gradients and lazy negation. */
enum {
  NATIVE_REUSE_CACHE = 1,
  NATIVE_VOUCHED = 2,
  NATIVE_ADD_SHIFT = 8 /* of LASP_ADD_*, to backward; of tokens, to step */
};

enum { NATIVE_FORWARD = 0, NATIVE_BACKWARD = 1, NATIVE_STEP = 2 };
/* Makes the types of this file; once, when the module is loaded. */
int native_add_types(void);
/* A Pass: one of a plan's three calls with the arrays it takes. `forward`: for backward the plan's forward pass. */
PyObject *native_pass_create(int kind, lasp_plan *plan, int device, int device_index, PyObject *specs,
                             PyObject *forward);

/* ---- callbacks.c ---- */

/* A comm over a Python object with the methods of liblasp.Transport. */
lasp_status native_comm_create(PyObject *transport, const char *name, int32_t rank, int32_t nranks,
                               int32_t local_ranks, int32_t memory, double latency_us, double bandwidth_gbs,
                               lasp_comm **comm);
/* Points the options' log function to a callable(level, message); the caller keeps it alive. */
void native_set_log(lasp_context_options *options, PyObject *callable);
/* Lets calls that wait look at Python's signals, which the thread of this ident alone may handle. */
void native_set_interrupted(lasp_context_options *options, unsigned long long main_thread);
