/* Arrays as arguments: by the buffer protocol where there is one, else by what lasp/arrays.py finds out. Nothing is
 * copied. */
#include "native.h"

#include <string.h>

static PyObject *array_hook;

PyObject *native_set_array_hook(PyObject *hook) {
  Py_INCREF(hook);
  Py_XDECREF(array_hook);
  array_hook = hook;
  Py_RETURN_NONE;
}

/* What was found out about an array, whichever way. */
typedef struct found {
  void *data;
  int32_t dtype;
  Py_ssize_t itemsize;
  int32_t dims;
  int64_t shape[NATIVE_MAX_DIMS];
  int64_t strides[NATIVE_MAX_DIMS];
} found;

static const char *const dtype_names[] = {"float32", "bfloat16", "float16"};

/* The dtype of a buffer's format. Sixteen-bit integers are how bfloat16 travels where nothing knows it. */
static int32_t dtype_of_format(const char *format, Py_ssize_t itemsize) {
  if (format && (*format == '@' || *format == '=' || *format == '<')) ++format;
  if (!format || strlen(format) != 1) return NATIVE_OTHER;
  if (*format == 'f' && itemsize == 4) return LASP_FLOAT32;
  if (*format == 'e' && itemsize == 2) return LASP_FLOAT16;
  if (*format == 'H' && itemsize == 2) return LASP_BFLOAT16;
  return NATIVE_OTHER;
}

/* What NumPy calls a format, for a sentence. */
static const char *name_of_format(const char *format) {
  static const char *const names[][2] = {{"d", "float64"}, {"b", "int8"},  {"B", "uint8"},     {"h", "int16"},
                                         {"H", "uint16"},  {"i", "int32"}, {"I", "uint32"},    {"l", "int64"},
                                         {"L", "uint64"},  {"?", "bool"},  {"Zf", "complex64"}};
  for (size_t i = 0; format && i < sizeof names / sizeof *names; ++i) {
    if (strcmp(format, names[i][0]) == 0) return names[i][1];
  }
  return format ? format : "bytes";
}

static PyObject *tuple_of(const int64_t *values, int32_t count) {
  PyObject *const tuple = PyTuple_New(count);
  for (int32_t i = 0; tuple && i < count; ++i) PyTuple_SetItem(tuple, i, PyLong_FromLongLong(values[i]));
  return tuple;
}

static int refuse_tuples(const native_spec *spec, const char *what, const int64_t *got, int32_t got_dims,
                         const int64_t *wanted) {
  PyObject *const left = tuple_of(got, got_dims), *const right = tuple_of(wanted, spec->dims);
  if (left && right) {
    native_refuse(LASP_ERROR_INVALID_ARGUMENT, "%s has %s %S, but the plan was made for %S", spec->name, what, left,
                  right);
  }
  Py_XDECREF(left);
  Py_XDECREF(right);
  return -1;
}

/* Compares shape, dtype and strides with what the plan was made for, and gives the extent in bytes. */
static int check(const found *array, const native_spec *spec, const char *format, size_t *bytes) {
  if (array->dims != spec->dims || memcmp(array->shape, spec->shape, sizeof(int64_t) * (size_t)spec->dims) != 0) {
    return refuse_tuples(spec, "shape", array->shape, array->dims, spec->shape);
  }
  if (array->dtype != spec->dtype) {
    native_refuse(LASP_ERROR_INVALID_ARGUMENT, "%s is of type %s, but the plan was made for %s", spec->name,
                  array->dtype >= 0 ? dtype_names[array->dtype] : format, dtype_names[spec->dtype]);
    return -1;
  }
  int64_t last = 0;
  for (int32_t d = 0; d < spec->dims; ++d) {
    if (array->shape[d] == 0) {
      *bytes = 0;
      return 0;
    }
    last += (array->shape[d] - 1) * spec->strides[d];
  }
  for (int32_t d = 0; d < spec->dims; ++d) { /* the stride of a dimension of one element means nothing */
    if (array->shape[d] > 1 && array->strides[d] != spec->strides[d]) {
      return refuse_tuples(spec, "strides (in elements)", array->strides, array->dims, spec->strides);
    }
  }
  *bytes = (size_t)(last + 1) * (size_t)array->itemsize;
  return 0;
}

static int refuse_block(const native_spec *spec) {
  native_refuse(LASP_ERROR_INVALID_ARGUMENT, "%s is not contiguous: must be one block of bytes", spec->name);
  return -1;
}

static int take_view(native_array *array, const native_spec *spec) {
  const Py_buffer *const view = &array->view;
  array->memory.data = view->buf;
  if (spec->dtype == NATIVE_BYTES) {
    if (!PyBuffer_IsContiguous(view, 'C')) return refuse_block(spec);
    array->memory.bytes = (size_t)view->len;
    return 0;
  }
  found got = {view->buf, dtype_of_format(view->format, view->itemsize), view->itemsize, view->ndim, {0}, {0}};
  const Py_ssize_t itemsize = view->itemsize > 0 ? view->itemsize : 1; /* NumPy has types of no bytes */
  if (view->ndim > NATIVE_MAX_DIMS) {
    native_refuse(LASP_ERROR_INVALID_ARGUMENT, "%s has %d dimensions, but the plan was made for %d", spec->name,
                  view->ndim, (int)spec->dims);
    return -1;
  }
  for (int d = 0; d < view->ndim; ++d) {
    got.shape[d] = view->shape[d];
    got.strides[d] = view->strides[d] / itemsize;
    if (view->strides[d] % itemsize != 0 && view->shape[d] > 1) got.strides[d] = -1; /* matches no plan */
  }
  return check(&got, spec, name_of_format(view->format), &array->memory.bytes);
}

static int read_tuple(PyObject *tuple, int64_t *values, int32_t *count) {
  const Py_ssize_t size = PyTuple_Size(tuple);
  if (size < 0 || size > NATIVE_MAX_DIMS) return -1;
  *count = (int32_t)size;
  for (Py_ssize_t i = 0; i < size; ++i) values[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
  return PyErr_Occurred() ? -1 : 0;
}

static const char *device_name(int device) { return device == LASP_DEVICE_CUDA ? "cuda" : "cpu"; }

/* An object without the buffer protocol: the hook knows frameworks and DLPack. */
static int take_hooked(native_array *array, PyObject *object, const native_spec *spec, int32_t device,
                       int32_t device_index) {
  PyObject *const answer = PyObject_CallFunction(array_hook, "Os", object, spec->name);
  if (!answer) return -1;
  int result = -1;
  unsigned long long address = 0;
  int dtype = 0, on = 0, index = 0, readonly = 0;
  Py_ssize_t itemsize = 0;
  PyObject *shape, *strides, *owner;
  found got = {0};
  int32_t dims = 0;
  if (!PyArg_ParseTuple(answer, "KiniiO!O!iO", &address, &dtype, &itemsize, &on, &index, &PyTuple_Type, &shape,
                        &PyTuple_Type, &strides, &readonly, &owner)) {
    goto done;
  }
  if (on != device || (device == LASP_DEVICE_CUDA && index != device_index)) {
    native_refuse(LASP_ERROR_INVALID_ARGUMENT, "%s lies on %s:%d, but the context is on %s:%d", spec->name,
                  device_name(on), index, device_name(device), (int)device_index);
    goto done;
  }
  if (readonly && spec->writable) {
    native_refuse(LASP_ERROR_INVALID_ARGUMENT, "%s is read-only, but the call writes it", spec->name);
    goto done;
  }
  if (read_tuple(shape, got.shape, &got.dims) != 0 || read_tuple(strides, got.strides, &dims) != 0) {
    if (!PyErr_Occurred()) {
      native_refuse(LASP_ERROR_INVALID_ARGUMENT, "%s has more than %d dimensions", spec->name, NATIVE_MAX_DIMS);
    }
    goto done;
  }
  got.data = array->memory.data = (void *)(uintptr_t)address;
  got.dtype = dtype, got.itemsize = itemsize;
  if (spec->dtype == NATIVE_BYTES) {
    array->memory.bytes = (size_t)itemsize;
    for (int32_t d = got.dims; d-- > 0; array->memory.bytes *= (size_t)got.shape[d]) {
      if (got.shape[d] > 1 && (size_t)got.strides[d] * (size_t)itemsize != array->memory.bytes) {
        refuse_block(spec);
        goto done;
      }
    }
  } else if (check(&got, spec, "another type", &array->memory.bytes) != 0) {
    goto done;
  }
  Py_INCREF(owner);
  array->owner = owner;
  result = 0;
done:
  Py_DECREF(answer);
  return result;
}

int native_array_take(native_array *array, PyObject *object, const native_spec *spec, int32_t device,
                      int32_t device_index) {
  memset(array, 0, sizeof *array);
  if (object == Py_None) return 0;
  if (spec->absent) {
    native_refuse(LASP_ERROR_INVALID_ARGUMENT, "%s must be None: the plan was made without it", spec->name);
    return -1;
  }
  const int flags = PyBUF_STRIDES | PyBUF_FORMAT | (spec->writable ? PyBUF_WRITABLE : 0);
  if (device == LASP_DEVICE_CPU && PyObject_CheckBuffer(object)) {
    if (PyObject_GetBuffer(object, &array->view, flags) == 0) {
      if (take_view(array, spec) == 0) return 0;
      native_array_release(array);
      return -1;
    }
    /* A type that the protocol cannot name (ml_dtypes' bfloat16), or read-only memory: the hook tells which. */
    memset(array, 0, sizeof *array);
    PyErr_Clear();
  }
  return take_hooked(array, object, spec, device, device_index);
}

void native_array_release(native_array *array) {
  if (array->view.obj) PyBuffer_Release(&array->view);
  Py_CLEAR(array->owner);
}

PyObject *native_read_buffer(PyObject *object) {
  Py_buffer view;
  if (!PyObject_CheckBuffer(object)) Py_RETURN_NONE;
  if (PyObject_GetBuffer(object, &view, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    Py_RETURN_NONE;
  }
  PyObject *const shape = PyTuple_New(view.ndim), *const strides = PyTuple_New(view.ndim);
  for (int d = 0; shape && strides && d < view.ndim; ++d) {
    const Py_ssize_t itemsize = view.itemsize > 0 ? view.itemsize : 1;
    const Py_ssize_t step = view.strides[d] % itemsize == 0 ? view.strides[d] / itemsize : -1;
    PyTuple_SetItem(shape, d, PyLong_FromSsize_t(view.shape[d]));
    PyTuple_SetItem(strides, d, PyLong_FromSsize_t(step));
  }
  PyObject *answer = NULL;
  if (shape && strides) {
    answer = Py_BuildValue("iOOK", (int)dtype_of_format(view.format, view.itemsize), shape, strides,
                           (unsigned long long)(uintptr_t)view.buf);
  }
  Py_XDECREF(shape);
  Py_XDECREF(strides);
  PyBuffer_Release(&view);
  return answer;
}

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
enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_CUDA_MANAGED = 13, DL_FLOAT = 2, DL_BFLOAT = 4 };

static int32_t dtype_of_dlpack(const dl_tensor *tensor) {
  if (tensor->dtype.lanes != 1) return NATIVE_OTHER;
  if (tensor->dtype.code == DL_FLOAT && tensor->dtype.bits == 32) return LASP_FLOAT32;
  if (tensor->dtype.code == DL_FLOAT && tensor->dtype.bits == 16) return LASP_FLOAT16;
  if (tensor->dtype.code == DL_BFLOAT && tensor->dtype.bits == 16) return LASP_BFLOAT16;
  return NATIVE_OTHER;
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
  const int32_t on = tensor->device.type == DL_CPU || tensor->device.type == DL_CUDA_HOST       ? LASP_DEVICE_CPU
                     : tensor->device.type == DL_CUDA || tensor->device.type == DL_CUDA_MANAGED ? LASP_DEVICE_CUDA
                                                                                                : -1;
  if (on < 0) {
    return native_refuse(LASP_ERROR_INVALID_ARGUMENT, "an array on DLPack device type %d: must be CPU or CUDA",
                         (int)tensor->device.type);
  }
  PyObject *const shape = tuple_of(tensor->shape, tensor->dims), *const strides = PyTuple_New(tensor->dims);
  int64_t contiguous = 1;
  for (int32_t d = tensor->dims; shape && strides && d-- > 0; contiguous *= tensor->shape[d]) {
    PyTuple_SetItem(strides, d, PyLong_FromLongLong(tensor->strides ? tensor->strides[d] : contiguous));
  }
  PyObject *answer = NULL;
  if (shape && strides) {
    answer =
        Py_BuildValue("KiniiOOiO", (unsigned long long)((uintptr_t)tensor->data + tensor->byte_offset),
                      (int)dtype_of_dlpack(tensor), (Py_ssize_t)(tensor->dtype.bits / 8), (int)on,
                      on == LASP_DEVICE_CUDA ? (int)tensor->device.index : 0, shape, strides, readonly, capsule);
  }
  Py_XDECREF(shape);
  Py_XDECREF(strides);
  return answer;
}
