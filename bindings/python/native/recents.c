/* What a call of liblasp.torch finds its plan by: a Recents keeps values (plans) by the looks of the tensors that
 * they were made for, the latest first, so that a repeated call compares numbers and makes no Python object. */
#include "native.h"

#include <string.h>

enum { CAPACITY = 8, MAX_TENSORS = 6 };

typedef struct entry {
  PyObject *value, *settings; /* what else must be equal */
  int count;
  int present[MAX_TENSORS];
  native_found tensors[MAX_TENSORS];
} entry;

typedef struct recents {
  PyObject_HEAD int count;
  entry *entries[CAPACITY]; /* the latest first */
} recents;

static PyTypeObject *recents_type;

static void free_entry(entry *dropped) {
  Py_XDECREF(dropped->value);
  Py_XDECREF(dropped->settings);
  PyMem_Free(dropped);
}

/* How the tensors look, None as absent. 0 where one of them cannot be read here. */
static int look(PyObject *const *tensors, Py_ssize_t count, entry *seen) {
  if (count > MAX_TENSORS) return 0;
  seen->count = (int)count;
  for (Py_ssize_t i = 0; i < count; ++i) {
    seen->present[i] = tensors[i] != Py_None;
    if (seen->present[i] &&
        (!native_exchange_read(tensors[i], &seen->tensors[i]) || native_is_negated(tensors[i]))) {
      return 0;
    }
  }
  return 1;
}

/* Strides count where they mean nothing too (a dimension of one element): ranks must find, or not find, a plan
 * together, so this may say no more often than the other way to find it, and never yes more often. */
static int same_look(const entry *one, const entry *other) {
  if (one->count != other->count) return 0;
  for (int i = 0; i < one->count; ++i) {
    if (one->present[i] != other->present[i]) return 0;
    if (!one->present[i]) continue;
    const native_found *const a = &one->tensors[i], *const b = &other->tensors[i];
    const size_t bytes = sizeof(int64_t) * (size_t)a->dims;
    if (a->dims != b->dims || a->dtype != b->dtype || a->itemsize != b->itemsize || a->device != b->device ||
        a->device_index != b->device_index || memcmp(a->shape, b->shape, bytes) != 0 ||
        memcmp(a->strides, b->strides, bytes) != 0) {
      return 0;
    }
  }
  return 1;
}

static void to_front(recents *self, int at) {
  entry *const found = self->entries[at];
  memmove(self->entries + 1, self->entries, sizeof(entry *) * (size_t)at);
  self->entries[0] = found;
}

/* find(settings, tensor...) -> the value kept for these, or None. */
static PyObject *find(PyObject *object, PyObject *const *given, Py_ssize_t count) {
  recents *const self = (recents *)object;
  entry seen;
  if (count < 1) return PyErr_Format(PyExc_TypeError, "find(settings, *tensors)");
  if (self->count == 0 || !look(given + 1, count - 1, &seen)) Py_RETURN_NONE;
  for (int i = 0; i < self->count; ++i) {
    entry *const kept = self->entries[i];
    if (!same_look(kept, &seen)) continue;
    PyObject *const value = kept->value, *const settings = kept->settings;
    Py_INCREF(value); /* a comparison may run Python code, which may drop the entry */
    Py_INCREF(settings);
    const int equal = PyObject_RichCompareBool(settings, given[0], Py_EQ);
    Py_DECREF(settings);
    if (equal == 1) {
      if (i < self->count && self->entries[i] == kept) to_front(self, i);
      return value;
    }
    Py_DECREF(value);
    if (equal < 0) return NULL;
  }
  Py_RETURN_NONE;
}

/* keep(value, settings, tensor...): from now on find gives it. Nothing is kept of tensors that cannot be read here.
 */
static PyObject *keep(PyObject *object, PyObject *const *given, Py_ssize_t count) {
  recents *const self = (recents *)object;
  if (count < 2) return PyErr_Format(PyExc_TypeError, "keep(value, settings, *tensors)");
  entry *const made = (entry *)PyMem_Calloc(1, sizeof *made);
  if (!made) return PyErr_NoMemory();
  if (!look(given + 2, count - 2, made)) {
    PyMem_Free(made);
    Py_RETURN_NONE;
  }
  made->value = given[0], made->settings = given[1];
  Py_INCREF(made->value);
  Py_INCREF(made->settings);
  entry *dropped = NULL;
  if (self->count == CAPACITY) dropped = self->entries[--self->count];
  self->entries[self->count] = made;
  to_front(self, self->count++);
  if (dropped) free_entry(dropped);
  Py_RETURN_NONE;
}

/* drop(value): it is not found any more; without a value nothing is. */
static PyObject *drop(PyObject *object, PyObject *const *given, Py_ssize_t count) {
  recents *const self = (recents *)object;
  entry *dropped[CAPACITY];
  int dropped_count = 0, left = 0;
  for (int i = 0; i < self->count; ++i) {
    if (count == 0 || self->entries[i]->value == given[0]) {
      dropped[dropped_count++] = self->entries[i];
    } else {
      self->entries[left++] = self->entries[i];
    }
  }
  self->count = left;
  while (dropped_count > 0) free_entry(dropped[--dropped_count]);
  Py_RETURN_NONE;
}

static void recents_free(PyObject *object) {
  PyTypeObject *const type = Py_TYPE(object);
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  Py_XDECREF(drop(object, NULL, 0));
  release(object);
  Py_DECREF(type);
}

PyObject *native_recents_create(void) { return PyType_GenericAlloc(recents_type, 0); }

static PyMethodDef methods[] = {
    {"find", (PyCFunction)(void (*)(void))find, METH_FASTCALL, "find(settings, *tensors) -> value or None"},
    {"keep", (PyCFunction)(void (*)(void))keep, METH_FASTCALL, "keep(value, settings, *tensors)"},
    {"drop", (PyCFunction)(void (*)(void))drop, METH_FASTCALL, "drop(value) or drop()"},
    {NULL, NULL, 0, NULL}};
static PyType_Slot slots[] = {{Py_tp_dealloc, (void *)recents_free}, {Py_tp_methods, methods}, {0, NULL}};
static PyType_Spec spec = {"liblasp._lasp.Recents", sizeof(recents), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

int native_add_recents_type(void) {
  recents_type = (PyTypeObject *)PyType_FromSpec(&spec);
  return recents_type ? 0 : -1;
}
