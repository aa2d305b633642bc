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

static const char *const dtype_names[] = {"default", "float32", "bfloat16", "float16"};

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

PyObject *native_tuple_of(const int64_t *values, int32_t count) {
  PyObject *const tuple = PyTuple_New(count);
  for (int32_t i = 0; tuple && i < count; ++i) PyTuple_SetItem(tuple, i, PyLong_FromLongLong(values[i]));
  return tuple;
}

static int refuse_tuples(const native_spec *spec, const char *what, const int64_t *got, int32_t got_dims,
                         const int64_t *wanted) {
  PyObject *const left = native_tuple_of(got, got_dims), *const right = native_tuple_of(wanted, spec->dims);
  if (left && right) {
    native_refuse(LASP_ERROR_INVALID_ARGUMENT, "%s has %s %S, but the plan was made for %S", spec->name, what, left,
                  right);
  }
  Py_XDECREF(left);
  Py_XDECREF(right);
  return -1;
}

/* Says what an array's elements are: by its own dtype where it has one, else by what it was read by. */
static int refuse_dtype(PyObject *object, const native_spec *spec, const char *found) {
  PyObject *const dtype = PyObject_GetAttrString(object, "dtype"), *const name = dtype ? PyObject_Str(dtype) : NULL;
  PyErr_Clear();
  if (name) {
    native_refuse(LASP_ERROR_INVALID_ARGUMENT, "%s is of type %U, but the plan was made for %s", spec->name, name,
                  dtype_names[spec->dtype]);
  } else {
    native_refuse(LASP_ERROR_INVALID_ARGUMENT, "%s is of type %s, but the plan was made for %s", spec->name, found,
                  dtype_names[spec->dtype]);
  }
  Py_XDECREF(dtype);
  Py_XDECREF(name);
  return -1;
}

/* Compares shape, dtype and strides with what the plan was made for, and gives the extent in bytes. `format` names
 * a type that has no dtype. */
static int check(PyObject *object, const native_found *array, const native_spec *spec, const char *format,
                 size_t *bytes) {
  if (array->dims != spec->dims || memcmp(array->shape, spec->shape, sizeof(int64_t) * (size_t)spec->dims) != 0) {
    return refuse_tuples(spec, "shape", array->shape, array->dims, spec->shape);
  }
  if (array->dtype != spec->dtype) {
    return refuse_dtype(object, spec, array->dtype >= 0 ? dtype_names[array->dtype] : format);
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

static int take_view(native_array *array, PyObject *object, const native_spec *spec) {
  const Py_buffer *const view = &array->view;
  array->memory.data = view->buf;
  if (spec->dtype == NATIVE_BYTES) {
    if (!PyBuffer_IsContiguous(view, 'C')) return refuse_block(spec);
    array->memory.bytes = (size_t)view->len;
    return 0;
  }
  native_found got = {.data = view->buf, .dims = view->ndim, .itemsize = view->itemsize};
  got.dtype = dtype_of_format(view->format, view->itemsize);
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
  return check(object, &got, spec, name_of_format(view->format), &array->memory.bytes);
}

static int read_tuple(PyObject *tuple, int64_t *values, int32_t *count) {
  const Py_ssize_t size = PyTuple_Size(tuple);
  if (size < 0 || size > NATIVE_MAX_DIMS) return -1;
  *count = (int32_t)size;
  for (Py_ssize_t i = 0; i < size; ++i) values[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
  return PyErr_Occurred() ? -1 : 0;
}

static const char *device_name(int device) { return device == LASP_DEVICE_CUDA ? "cuda" : "cpu"; }

/* Takes what was found of an object, whose memory lives as long as `owner`. */
static int take_found(native_array *array, PyObject *object, PyObject *owner, const native_found *found,
                      const native_spec *spec, int32_t device, int32_t device_index) {
  if (found->device != device || (device == LASP_DEVICE_CUDA && found->device_index != device_index)) {
    native_refuse(LASP_ERROR_INVALID_ARGUMENT, "%s lies on %s:%d, but the context is on %s:%d", spec->name,
                  device_name(found->device), (int)found->device_index, device_name(device), (int)device_index);
    return -1;
  }
  size_t bytes = (size_t)found->itemsize;
  if (spec->dtype == NATIVE_BYTES) {
    for (int32_t d = found->dims; d-- > 0; bytes *= (size_t)found->shape[d]) {
      if (found->shape[d] > 1 && (size_t)found->strides[d] * (size_t)found->itemsize != bytes) {
        return refuse_block(spec);
      }
    }
  } else if (check(object, found, spec, "a type that no tensor has", &bytes) != 0) {
    return -1;
  }
  array->memory.data = found->data, array->memory.bytes = bytes;
  Py_INCREF(owner);
  array->owner = owner;
  return 0;
}

/* An object of which C knows nothing: the hook knows frameworks and DLPack. */
static int take_hooked(native_array *array, PyObject *object, const native_spec *spec, int32_t device,
                       int32_t device_index) {
  PyObject *const answer = PyObject_CallFunction(array_hook, "Os", object, spec->name);
  if (!answer) return -1;
  int result = -1;
  unsigned long long address = 0;
  int dtype = 0, on = 0, index = 0, readonly = 0;
  Py_ssize_t itemsize = 0;
  PyObject *shape, *strides, *owner;
  native_found found = {0};
  int32_t dims = 0;
  if (!PyArg_ParseTuple(answer, "KiniiO!O!iO", &address, &dtype, &itemsize, &on, &index, &PyTuple_Type, &shape,
                        &PyTuple_Type, &strides, &readonly, &owner)) {
    goto done;
  }
  if (readonly && spec->writable) {
    native_refuse(LASP_ERROR_INVALID_ARGUMENT, "%s is read-only, but the call writes it", spec->name);
    goto done;
  }
  if (read_tuple(shape, found.shape, &found.dims) != 0 || read_tuple(strides, found.strides, &dims) != 0) {
    if (!PyErr_Occurred()) {
      native_refuse(LASP_ERROR_INVALID_ARGUMENT, "%s has more than %d dimensions", spec->name, NATIVE_MAX_DIMS);
    }
    goto done;
  }
  found.data = (void *)(uintptr_t)address, found.dtype = dtype, found.itemsize = itemsize;
  found.device = on, found.device_index = index;
  result = take_found(array, object, owner, &found, spec, device, device_index);
done:
  Py_DECREF(answer);
  return result;
}

int native_array_take(native_array *array, PyObject *object, const native_spec *spec, int32_t device,
                      int32_t device_index, int vouched) {
  array->memory.data = array->view.obj = NULL;
  array->memory.bytes = 0, array->owner = NULL;
  if (object == Py_None) return 0;
  if (spec->absent) {
    native_refuse(LASP_ERROR_INVALID_ARGUMENT, "%s must be None: the plan was made without it", spec->name);
    return -1;
  }
  const int flags = PyBUF_STRIDES | PyBUF_FORMAT | (spec->writable ? PyBUF_WRITABLE : 0);
  if (device == LASP_DEVICE_CPU && PyObject_CheckBuffer(object)) {
    if (PyObject_GetBuffer(object, &array->view, flags) == 0) {
      if (take_view(array, object, spec) == 0) return 0;
      native_array_release(array);
      return -1;
    }
    /* A type that the protocol cannot name (ml_dtypes' bfloat16), or read-only memory: the hook tells which. */
    array->view.obj = NULL;
    PyErr_Clear();
  }
  native_found found;
  if (native_exchange_read(object, &found) && (vouched || native_is_plain(object))) {
    return take_found(array, object, object, &found, spec, device, device_index);
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
