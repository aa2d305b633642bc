/* Arrays by DLPack: capsules, and the faster way of frameworks that put a table of C functions on their array type
 * (DLPack 1.2's exchange API): what a tensor is, without a Python object made for the question. */
#include "native.h"

/* DLPack's structures, as its specification lays them out. */
typedef struct dl_tensor {
  void *data;
  struct {
    int32_t type, index;
  } device;
  int32_t dims;
  struct {
    uint8_t code, bits;
    uint16_t lanes;
  } dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} dl_tensor;
typedef struct dl_versioned {
  uint32_t major, minor;
  void *manager;
  void (*deleter)(struct dl_versioned *);
  uint64_t flags; /* bit 0: read-only */
  dl_tensor tensor;
} dl_versioned;
typedef struct dl_exchange {
  uint32_t major, minor;
  struct dl_exchange *previous;
  void (*allocate)(void), (*from_object)(void), (*to_object)(void); /* not used here */
  int (*view)(void *object, dl_tensor *out);                        /* borrowed; may be NULL */
  void (*stream)(void);
} dl_exchange;
enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_CUDA_MANAGED = 13, DL_FLOAT = 2, DL_BFLOAT = 4 };

static int32_t dtype_of(const dl_tensor *tensor) {
  if (tensor->dtype.lanes != 1) return NATIVE_OTHER;
  if (tensor->dtype.code == DL_FLOAT && tensor->dtype.bits == 32) return LASP_FLOAT32;
  if (tensor->dtype.code == DL_FLOAT && tensor->dtype.bits == 16) return LASP_FLOAT16;
  if (tensor->dtype.code == DL_BFLOAT && tensor->dtype.bits == 16) return LASP_BFLOAT16;
  return NATIVE_OTHER;
}

/* LASP_DEVICE_*; -1: another kind. */
static int32_t device_of(const dl_tensor *tensor) {
  const int32_t type = tensor->device.type;
  if (type == DL_CPU || type == DL_CUDA_HOST) return LASP_DEVICE_CPU;
  return type == DL_CUDA || type == DL_CUDA_MANAGED ? LASP_DEVICE_CUDA : -1;
}

/* The capsule is read and not consumed: as long as it lives, so does the memory. */
PyObject *native_read_dlpack(PyObject *capsule) {
  const dl_tensor *tensor = NULL;
  int readonly = 0;
  if (PyCapsule_IsValid(capsule, "dltensor")) {
    tensor = (const dl_tensor *)PyCapsule_GetPointer(capsule, "dltensor");
  } else if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    const dl_versioned *const versioned = (const dl_versioned *)PyCapsule_GetPointer(capsule, "dltensor_versioned");
    if (versioned->major > 1) {
      return native_refuse(LASP_ERROR_INVALID_ARGUMENT, "this array speaks DLPack %d, known is 1",
                           (int)versioned->major);
    }
    readonly = versioned->flags & 1;
    tensor = &versioned->tensor;
  }
  if (!tensor) return native_refuse(LASP_ERROR_INVALID_ARGUMENT, "__dlpack__ gave no DLPack capsule");
  const int32_t on = device_of(tensor);
  if (on < 0) {
    return native_refuse(LASP_ERROR_INVALID_ARGUMENT, "an array on DLPack device type %d: must be CPU or CUDA",
                         (int)tensor->device.type);
  }
  PyObject *const shape = native_tuple_of(tensor->shape, tensor->dims), *const strides = PyTuple_New(tensor->dims);
  int64_t contiguous = 1;
  for (int32_t d = tensor->dims; shape && strides && d-- > 0; contiguous *= tensor->shape[d]) {
    PyTuple_SetItem(strides, d, PyLong_FromLongLong(tensor->strides ? tensor->strides[d] : contiguous));
  }
  PyObject *answer = NULL;
  if (shape && strides) {
    answer =
        Py_BuildValue("KiniiOOiO", (unsigned long long)((uintptr_t)tensor->data + tensor->byte_offset),
                      (int)dtype_of(tensor), (Py_ssize_t)(tensor->dtype.bits / 8), (int)on,
                      on == LASP_DEVICE_CUDA ? (int)tensor->device.index : 0, shape, strides, readonly, capsule);
  }
  Py_XDECREF(shape);
  Py_XDECREF(strides);
  return answer;
}

/* ---- Types with an exchange API ---- */

enum { MAX_TYPES = 4 };
static struct {
  PyTypeObject *type; /* held for good */
  const dl_exchange *api;
} known[MAX_TYPES];
static int known_count;
static PyObject *requires_grad, *is_neg; /* names of torch's attributes */

/* Registers torch.Tensor, or another of torch's types whose objects are nothing but a tensor, with the capsule of
 * its exchange API. Gives whether it can be used. */
PyObject *native_learn_type(PyObject *type, PyObject *capsule) {
  if (!PyType_Check(type) || !PyCapsule_IsValid(capsule, "dlpack_exchange_api")) Py_RETURN_FALSE;
  const dl_exchange *api = (const dl_exchange *)PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  while (api && api->major != 1) api = api->previous;
  if (!api || !api->view || known_count == MAX_TYPES) Py_RETURN_FALSE;
  for (int i = 0; i < known_count; ++i) {
    if ((PyObject *)known[i].type == type) Py_RETURN_TRUE;
  }
  if (!requires_grad) requires_grad = PyUnicode_InternFromString("requires_grad");
  if (!is_neg) is_neg = PyUnicode_InternFromString("is_neg");
  if (!requires_grad || !is_neg) return NULL;
  Py_INCREF(type);
  known[known_count].type = (PyTypeObject *)type, known[known_count].api = api;
  ++known_count;
  Py_RETURN_TRUE;
}

/* Whether an answer of torch's is anything but False. Takes the reference. */
static int is_yes(PyObject *answer) {
  if (!answer) PyErr_Clear();
  Py_XDECREF(answer);
  return answer != Py_False;
}

int native_is_negated(PyObject *object) { return is_yes(PyObject_CallMethodObjArgs(object, is_neg, NULL)); }

int native_is_plain(PyObject *object) {
  return !native_is_negated(object) && !is_yes(PyObject_GetAttr(object, requires_grad));
}

int native_exchange_read(PyObject *object, native_found *found) {
  const dl_exchange *api = NULL;
  for (int i = 0; i < known_count && !api; ++i) {
    if (known[i].type == Py_TYPE(object)) api = known[i].api;
  }
  if (!api) return 0;
  dl_tensor tensor;
  if (api->view(object, &tensor) != 0) {
    PyErr_Clear();
    return 0;
  }
  if (tensor.dims > NATIVE_MAX_DIMS || (tensor.dims > 0 && !tensor.strides) || tensor.dtype.bits % 8 != 0) return 0;
  found->device = device_of(&tensor);
  if (found->device < 0) return 0;
  found->device_index = found->device == LASP_DEVICE_CUDA ? tensor.device.index : 0;
  found->data = (char *)tensor.data + tensor.byte_offset;
  found->dtype = dtype_of(&tensor), found->itemsize = tensor.dtype.bits / 8 * tensor.dtype.lanes;
  found->dims = tensor.dims;
  for (int32_t d = 0; d < tensor.dims; ++d) {
    found->shape[d] = tensor.shape[d], found->strides[d] = tensor.strides[d];
  }
  return 1;
}
