/* What passes.c and arguments.c share: a Pass, and the arguments of the call that it makes. */
#pragma once

#include "native.h"

enum { NATIVE_MAX_SLOTS = 17 };

/* Where the arguments of each call lie in its struct. lasp_buffer and lasp_const_buffer are laid out alike. */
typedef struct slot {
  const char *name;
  size_t offset;
  int writable;
} slot;

/* By NATIVE_FORWARD, _BACKWARD, _STEP: the call's name, and its arrays in the order in which they are given. */
typedef struct kind {
  const char *name;
  const slot *slots;
  int count;
} kind;
extern const kind native_kinds[];

typedef union arguments {
  lasp_forward_args forward;
  lasp_backward_args backward;
  lasp_step_args step;
  char bytes[1];
} arguments;

typedef struct pass {
  PyObject_HEAD int kind;
  int32_t device, device_index, nranks;
  lasp_plan *plan;      /* NULL once closed */
  native_kept *kept;    /* of forward, which backward shares; NULL for step */
  struct pass *forward; /* of backward: the pass that owns `kept` */
  native_spec specs[NATIVE_MAX_SLOTS];
  lasp_packing packing; /* of the calls to come, of a packed plan; size 0: none was given */
  PyObject *offsets;    /* what holds its offsets */
} pass;

/* One array's spec out of None or (dtype, shape, strides); dtype NATIVE_BYTES takes no shape. -1: raised. */
int native_read_spec(native_spec *spec, const slot *slot, PyObject *given);
/* None or an address. -1: raised. */
int native_read_stream(PyObject *object, unsigned long long *stream);
/* (address, bytes) of an argument. -1: raised. */
int native_read_memory(PyObject *object, const char *name, lasp_buffer *memory);
/* Begins a call's struct, and returns the flags that are said with its arrays. -1: raised. */
int native_start_call(const pass *self, PyObject *said, arguments *args);
/* A packing for the args of a call; the offsets live as long as `packing` is used. */
void native_give_packing(const lasp_packing *packing, int kind, arguments *args);
/* Takes the arrays in order; on failure (-1: raised) those taken so far are released. */
int native_take_arrays(const pass *self, int flags, PyObject *const *objects, native_array *arrays,
                       arguments *args);
