/* What goes into a call: where each array's place in its struct is, what the array must look like, and the numbers
 * that come with them. */
#include <string.h>

#include "pass.h"

#define IN(field) \
  { #field, offsetof(ARGS, field), 0 }
#define OUT(field) \
  { #field, offsetof(ARGS, field), 1 }
#define ARGS lasp_forward_args
static const slot forward_slots[] = {
    IN(q),         IN(k), IN(v), IN(decay), IN(beta), IN(initial_state), OUT(o), OUT(final_state), OUT(state_cache),
    OUT(workspace)};
#undef ARGS
#define ARGS lasp_backward_args
static const slot backward_slots[] = {IN(q),
                                      IN(k),
                                      IN(v),
                                      IN(decay),
                                      IN(beta),
                                      IN(initial_state),
                                      IN(d_o),
                                      IN(d_final_state),
                                      IN(state_cache),
                                      OUT(dq),
                                      OUT(dk),
                                      OUT(dv),
                                      OUT(d_decay),
                                      OUT(d_beta),
                                      OUT(d_initial_state),
                                      OUT(workspace)};
#undef ARGS
#define ARGS lasp_step_args
static const slot step_slots[] = {IN(q), IN(k), IN(v), IN(decay), IN(beta), OUT(state), OUT(o)};
#undef ARGS

const kind native_kinds[] = {{"forward", forward_slots, sizeof forward_slots / sizeof(slot)},
                             {"backward", backward_slots, sizeof backward_slots / sizeof(slot)},
                             {"step", step_slots, sizeof step_slots / sizeof(slot)}};

int native_read_spec(native_spec *spec, const slot *slot, PyObject *given) {
  spec->name = slot->name, spec->writable = slot->writable;
  spec->absent = given == Py_None;
  if (spec->absent) return 0;
  int dtype;
  PyObject *shape, *strides;
  if (!PyArg_ParseTuple(given, "iO!O!", &dtype, &PyTuple_Type, &shape, &PyTuple_Type, &strides)) return -1;
  const Py_ssize_t dims = PyTuple_Size(shape);
  if (dims > NATIVE_MAX_DIMS || PyTuple_Size(strides) != dims) {
    PyErr_Format(PyExc_ValueError, "%s: a spec has at most %d dimensions", slot->name, NATIVE_MAX_DIMS);
    return -1;
  }
  spec->dtype = dtype, spec->dims = (int32_t)dims;
  for (Py_ssize_t d = 0; d < dims; ++d) {
    spec->shape[d] = PyLong_AsLongLong(PyTuple_GetItem(shape, d));
    spec->strides[d] = PyLong_AsLongLong(PyTuple_GetItem(strides, d));
  }
  return PyErr_Occurred() ? -1 : 0;
}

static void start_arguments(arguments *args, int kind) {
  memset(args, 0, sizeof *args);
  args->forward.size = kind == NATIVE_FORWARD    ? sizeof(lasp_forward_args)
                       : kind == NATIVE_BACKWARD ? sizeof(lasp_backward_args)
                                                 : sizeof(lasp_step_args);
}

void native_give_packing(const lasp_packing *packing, int kind, arguments *args) {
  if (packing->size == 0) return;
  if (kind == NATIVE_FORWARD) args->forward.packing = packing;
  if (kind == NATIVE_BACKWARD) args->backward.packing = packing;
}

int native_take_arrays(const pass *self, int flags, PyObject *const *objects, native_array *arrays,
                       arguments *args) {
  const int vouched = (flags & NATIVE_VOUCHED) != 0;
  for (int i = 0; i < native_kinds[self->kind].count; ++i) {
    if (native_array_take(&arrays[i], objects[i], &self->specs[i], self->device, self->device_index, vouched) !=
        0) {
      while (i-- > 0) native_array_release(&arrays[i]);
      return -1;
    }
    memcpy(args->bytes + native_kinds[self->kind].slots[i].offset, &arrays[i].memory, sizeof(lasp_buffer));
  }
  return 0;
}

/* A number that is an address or a count of bytes. */
static int read_number(PyObject *object, const char *name, unsigned long long *value) {
  *value =
      PyLong_Check(object) && !PyBool_Check(object) ? PyLong_AsUnsignedLongLong(object) : (unsigned long long)-1;
  if (*value != (unsigned long long)-1) return 0;
  PyErr_Clear();
  native_refuse(LASP_ERROR_INVALID_ARGUMENT, "%s = %R: must be an int from 0 to 2^64 - 2", name, object);
  return -1;
}

int native_read_stream(PyObject *object, unsigned long long *stream) {
  *stream = 0;
  return object == Py_None ? 0 : read_number(object, "stream", stream);
}

int native_read_memory(PyObject *object, const char *name, lasp_buffer *memory) {
  unsigned long long address, bytes;
  if (!PyTuple_Check(object) || PyTuple_Size(object) != 2) {
    native_refuse(LASP_ERROR_INVALID_ARGUMENT, "%s = %R: must be a pair (address, bytes)", name, object);
    return -1;
  }
  if (read_number(PyTuple_GetItem(object, 0), name, &address) != 0) return -1;
  if (read_number(PyTuple_GetItem(object, 1), name, &bytes) != 0) return -1;
  memory->data = (void *)(uintptr_t)address, memory->bytes = (size_t)bytes;
  return 0;
}

int native_start_call(const pass *self, PyObject *said, arguments *args) {
  const long all = PyLong_AsLong(said), flags = all & (NATIVE_REUSE_CACHE | NATIVE_VOUCHED);
  if (PyErr_Occurred()) return -1;
  start_arguments(args, self->kind);
  if (self->kind == NATIVE_FORWARD) args->forward.reuse_state_cache = flags & NATIVE_REUSE_CACHE;
  if (self->kind == NATIVE_BACKWARD) args->backward.add = (int32_t)(all >> NATIVE_ADD_SHIFT);
  if (self->kind == NATIVE_STEP) args->step.tokens = (int64_t)(all >> NATIVE_ADD_SHIFT);
  return (int)flags;
}
