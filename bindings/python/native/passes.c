/* The hot path: a Pass is one of a plan's three calls with what it expects of each array, so that a call is a few
 * comparisons per array, the library's function without the GIL, and nothing else. A Call is a pass whose arrays
 * are taken once and kept. */
#include <string.h>

#include "pass.h"

typedef struct call {
  PyObject_HEAD pass *of;
  int taken;
  arguments args;
  lasp_packing packing; /* as it was when the call was bound */
  PyObject *offsets;
  native_array arrays[NATIVE_MAX_SLOTS];
} call;

static PyTypeObject *pass_type, *call_type;

static void free_object(PyObject *self) {
  PyTypeObject *const type = Py_TYPE(self);
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(self);
  Py_DECREF(type);
}

/* What is kept of forward's caches: its own, or what backward shares with it. -1: no memory. */
static int share_kept(pass *self, PyObject *forward) {
  if (self->kind == NATIVE_FORWARD) {
    self->kept = (native_kept *)PyMem_Calloc(1, sizeof *self->kept);
    if (!self->kept) PyErr_NoMemory();
    return self->kept ? 0 : -1;
  }
  if (self->kind == NATIVE_BACKWARD) {
    Py_INCREF(forward);
    self->forward = (pass *)forward;
    self->kept = self->forward->kept;
  }
  return 0;
}

PyObject *native_pass_create(int kind, lasp_plan *plan, int device, int device_index, PyObject *specs,
                             PyObject *forward) {
  if (kind < NATIVE_FORWARD || kind > NATIVE_STEP || !PyTuple_Check(specs) ||
      PyTuple_Size(specs) != native_kinds[kind].count) {
    PyErr_SetString(PyExc_ValueError, "a pass needs one spec for each of its arrays");
    return NULL;
  }
  if (kind == NATIVE_BACKWARD && Py_TYPE(forward) != pass_type) {
    PyErr_SetString(PyExc_ValueError, "a backward pass needs its plan's forward pass");
    return NULL;
  }
  pass *const self = (pass *)PyType_GenericAlloc(pass_type, 0);
  if (!self) return NULL;
  lasp_plan_info info = LASP_PLAN_INFO_INIT;
  lasp_plan_get_info(plan, &info);
  self->kind = kind, self->plan = plan, self->device = device, self->device_index = device_index;
  self->nranks = info.nranks;
  if (share_kept(self, forward) != 0) {
    Py_DECREF(self);
    return NULL;
  }
  for (int i = 0; i < native_kinds[kind].count; ++i) {
    if (native_read_spec(&self->specs[i], &native_kinds[kind].slots[i], PyTuple_GetItem(specs, i)) != 0) {
      Py_DECREF(self);
      return NULL;
    }
  }
  return (PyObject *)self;
}

/* What this rank does not get to the library the other ranks would wait for: a call without arguments is refused
 * there, and they are told. Keeps the exception that is set. A reused cache is exchanged with nobody. */
static void tell_others(const pass *self, int flags) {
  if (self->nranks < 2 || !self->plan || self->kind == NATIVE_STEP || flags & NATIVE_REUSE_CACHE) return;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyThreadState *const state = PyEval_SaveThread();
  if (self->kind == NATIVE_FORWARD) {
    lasp_forward(self->plan, NULL, NULL);
  } else {
    lasp_backward(self->plan, NULL, NULL);
  }
  PyEval_RestoreThread(state);
  PyErr_Restore(type, value, traceback);
}

static PyObject *give_up(const pass *self, int flags) {
  tell_others(self, flags);
  return NULL;
}

static int flags_of(const pass *self, const arguments *args) {
  return self->kind == NATIVE_FORWARD && args->forward.reuse_state_cache ? NATIVE_REUSE_CACHE : 0;
}

/* Whether the state cache that the call reads, if it reads one, was written. */
static int check_cache(const pass *self, const arguments *args) {
  if (self->kind == NATIVE_BACKWARD)
    return native_kept_check(self->kept, args->backward.state_cache.data, "backward");
  if (self->kind != NATIVE_FORWARD || !args->forward.reuse_state_cache) return 0;
  return native_kept_check(self->kept, args->forward.state_cache.data, "forward(reuse_cache=True)");
}

/* The library's call, without the GIL. */
static PyObject *run_packed(const pass *self, const arguments *args, unsigned long long stream_address) {
  if (!self->plan) return native_refuse(LASP_ERROR_INVALID_HANDLE, "plan: it is closed");
  if (check_cache(self, args) != 0) return give_up(self, flags_of(self, args));
  lasp_plan *const plan = self->plan;
  const lasp_stream stream = (lasp_stream)(uintptr_t)stream_address;
  const int kind = self->kind;
  lasp_status status;
  PyThreadState *const state = PyEval_SaveThread();
  if (kind == NATIVE_FORWARD) {
    status = lasp_forward(plan, &args->forward, stream);
  } else if (kind == NATIVE_BACKWARD) {
    status = lasp_backward(plan, &args->backward, stream);
  } else {
    status = lasp_step(plan, &args->step, stream);
  }
  PyEval_RestoreThread(state);
  if (kind == NATIVE_FORWARD) native_kept_after_forward(self->kept, args->forward.state_cache.data, status);
  if (native_end_call(status) != 0) return NULL;
  Py_RETURN_NONE;
}

/* The same with the pass's packing, which another call may replace meanwhile. */
static PyObject *run(const pass *self, const arguments *given, unsigned long long stream_address) {
  const lasp_packing packing = self->packing;
  arguments args = *given;
  PyObject *const offsets = self->offsets;
  Py_XINCREF(offsets);
  native_give_packing(&packing, self->kind, &args);
  PyObject *const result = run_packed(self, &args, stream_address);
  Py_XDECREF(offsets);
  return result;
}

/* pass.run(stream, flags, array...): one call. */
static PyObject *pass_run(PyObject *object, PyObject *const *given, Py_ssize_t count) {
  const pass *const self = (const pass *)object;
  const int slots = native_kinds[self->kind].count;
  if (count != slots + 2) {
    return PyErr_Format(PyExc_TypeError, "%s takes %d arrays, %d were given", native_kinds[self->kind].name, slots,
                        (int)count - 2);
  }
  if (!self->plan) return native_refuse(LASP_ERROR_INVALID_HANDLE, "plan: it is closed");
  unsigned long long stream;
  arguments args;
  const int flags = native_start_call(self, given[1], &args);
  if (flags < 0 || native_read_stream(given[0], &stream) != 0) return give_up(self, flags);
  native_array arrays[NATIVE_MAX_SLOTS];
  if (native_take_arrays(self, flags, given + 2, arrays, &args) != 0) return give_up(self, flags);
  PyObject *const result = run(self, &args, stream);
  for (int i = 0; i < slots; ++i) native_array_release(&arrays[i]);
  return result;
}

/* pass.run_pointers(stream, flags, (address, bytes) or None...): for callers that have checked shapes themselves.
 */
static PyObject *pass_run_pointers(PyObject *object, PyObject *const *given, Py_ssize_t count) {
  const pass *const self = (const pass *)object;
  const int slots = native_kinds[self->kind].count;
  if (count != slots + 2) {
    return PyErr_Format(PyExc_TypeError, "%s takes %d arrays, %d were given", native_kinds[self->kind].name, slots,
                        (int)count - 2);
  }
  unsigned long long stream;
  arguments args;
  const int flags = native_start_call(self, given[1], &args);
  if (flags < 0 || native_read_stream(given[0], &stream) != 0) return give_up(self, flags);
  for (int i = 0; i < slots; ++i) {
    lasp_buffer memory;
    if (given[i + 2] == Py_None) continue;
    if (native_read_memory(given[i + 2], native_kinds[self->kind].slots[i].name, &memory) != 0)
      return give_up(self, flags);
    memcpy(args.bytes + native_kinds[self->kind].slots[i].offset, &memory, sizeof memory);
  }
  return run(self, &args, stream);
}

/* pass.bind(flags, array...) -> Call. */
static PyObject *pass_bind(PyObject *object, PyObject *const *given, Py_ssize_t count) {
  pass *const self = (pass *)object;
  if (count != native_kinds[self->kind].count + 1) {
    return PyErr_Format(PyExc_TypeError, "%s takes %d arrays, %d were given", native_kinds[self->kind].name,
                        native_kinds[self->kind].count, (int)count - 1);
  }
  call *const bound = (call *)PyType_GenericAlloc(call_type, 0);
  if (!bound) return NULL;
  Py_INCREF(object);
  bound->of = self;
  bound->packing = self->packing;
  bound->offsets = self->offsets;
  Py_XINCREF(bound->offsets);
  const int flags = native_start_call(self, given[0], &bound->args);
  if (flags < 0 || native_take_arrays(self, flags, given + 1, bound->arrays, &bound->args) != 0) {
    Py_DECREF(bound);
    return NULL;
  }
  native_give_packing(&bound->packing, self->kind, &bound->args);
  bound->taken = 1;
  return (PyObject *)bound;
}

/* pass.own_cache(address, framework): the plan keeps a cache there for calls on this framework's arrays. */
static PyObject *pass_own_cache(PyObject *object, PyObject *const *given, Py_ssize_t count) {
  pass *const self = (pass *)object;
  if (count != 2 || !self->kept) return PyErr_Format(PyExc_TypeError, "own_cache(address, framework), of forward");
  const char *const framework = PyUnicode_AsUTF8AndSize(given[1], NULL);
  void *const data = PyLong_AsVoidPtr(given[0]);
  if (!framework || PyErr_Occurred()) return NULL;
  if (native_kept_add(self->kept, data, framework) != 0) {
    return PyErr_Format(PyExc_ValueError, "own_cache: no room for one of %s", framework);
  }
  Py_RETURN_NONE;
}

/* pass.pack(address, bytes, num_sequences, dtype, memory, owner): the packing of the calls to come; without
 * arguments none. */
static PyObject *pass_pack(PyObject *object, PyObject *const *given, Py_ssize_t count) {
  pass *const self = (pass *)object;
  lasp_packing packing = {0};
  if (count == 6) {
    const lasp_packing start = LASP_PACKING_INIT;
    packing = start;
    packing.cu_seqlens.data = PyLong_AsVoidPtr(given[0]);
    packing.cu_seqlens.bytes = PyLong_AsSize_t(given[1]);
    packing.num_sequences = PyLong_AsLongLong(given[2]);
    packing.dtype = (int32_t)PyLong_AsLong(given[3]);
    packing.memory = (int32_t)PyLong_AsLong(given[4]);
    if (PyErr_Occurred()) return NULL;
  } else if (count != 0) {
    return PyErr_Format(PyExc_TypeError, "pack(address, bytes, num_sequences, dtype, memory, owner)");
  }
  PyObject *const before = self->offsets;
  self->packing = packing;
  self->offsets = count == 6 ? given[5] : NULL;
  Py_XINCREF(self->offsets);
  Py_XDECREF(before);
  Py_RETURN_NONE;
}

/* pass.tell_others(): that this rank's call was refused before it came here. */
static PyObject *pass_tell_others(PyObject *object, PyObject *unused) {
  (void)unused;
  tell_others((const pass *)object, 0);
  Py_RETURN_NONE;
}

/* pass.close(): from now on calls are refused. */
static PyObject *pass_close(PyObject *object, PyObject *unused) {
  (void)unused;
  ((pass *)object)->plan = NULL;
  Py_RETURN_NONE;
}

/* call(stream) runs what was bound. */
static PyObject *call_run(PyObject *object, PyObject *const *given, Py_ssize_t count) {
  const call *const self = (const call *)object;
  unsigned long long stream = 0;
  if (count > 1) return PyErr_Format(PyExc_TypeError, "a bound call takes the stream only");
  if (count == 1 && native_read_stream(given[0], &stream) != 0)
    return give_up(self->of, flags_of(self->of, &self->args));
  return run_packed(self->of, &self->args, stream);
}

/* call.addresses() -> {name: address} of the arrays that were given: what the library is handed. */
static PyObject *call_addresses(PyObject *object, PyObject *unused) {
  (void)unused;
  const call *const self = (const call *)object;
  PyObject *const addresses = PyDict_New();
  for (int i = 0; addresses && i < native_kinds[self->of->kind].count; ++i) {
    const lasp_buffer memory = self->arrays[i].memory;
    PyObject *const address = memory.data ? PyLong_FromVoidPtr(memory.data) : NULL;
    if (address) PyDict_SetItemString(addresses, native_kinds[self->of->kind].slots[i].name, address);
    Py_XDECREF(address);
  }
  return addresses;
}

static void call_free(PyObject *object) {
  call *const self = (call *)object;
  if (self->taken) {
    for (int i = 0; i < native_kinds[self->of->kind].count; ++i) native_array_release(&self->arrays[i]);
  }
  Py_CLEAR(self->offsets);
  Py_CLEAR(self->of);
  free_object(object);
}

static void pass_free(PyObject *object) {
  pass *const self = (pass *)object;
  if (self->kind == NATIVE_FORWARD) PyMem_Free(self->kept);
  Py_CLEAR(self->forward);
  Py_CLEAR(self->offsets);
  free_object(object);
}

static PyMethodDef pass_methods[] = {
    {"run", (PyCFunction)(void (*)(void))pass_run, METH_FASTCALL, "run(stream, flags, *arrays)"},
    {"run_pointers", (PyCFunction)(void (*)(void))pass_run_pointers, METH_FASTCALL,
     "run_pointers(stream, flags, *(address, bytes))"},
    {"bind", (PyCFunction)(void (*)(void))pass_bind, METH_FASTCALL, "bind(flags, *arrays) -> Call"},
    {"own_cache", (PyCFunction)(void (*)(void))pass_own_cache, METH_FASTCALL, "own_cache(address, framework)"},
    {"pack", (PyCFunction)(void (*)(void))pass_pack, METH_FASTCALL,
     "pack(address, bytes, num_sequences, dtype, memory, owner)"},
    {"tell_others", pass_tell_others, METH_NOARGS, "tell_others()"},
    {"close", pass_close, METH_NOARGS, "close()"},
    {NULL, NULL, 0, NULL}};
static PyMethodDef call_methods[] = {
    {"run", (PyCFunction)(void (*)(void))call_run, METH_FASTCALL, "run(stream=None)"},
    {"addresses", call_addresses, METH_NOARGS, "addresses() -> {name: address}"},
    {NULL, NULL, 0, NULL}};
static PyType_Slot pass_slots[] = {{Py_tp_dealloc, (void *)pass_free}, {Py_tp_methods, pass_methods}, {0, NULL}};
static PyType_Slot call_slots[] = {{Py_tp_dealloc, (void *)call_free}, {Py_tp_methods, call_methods}, {0, NULL}};
static PyType_Spec pass_spec = {"liblasp._lasp.Pass", sizeof(pass), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, pass_slots};
static PyType_Spec call_spec = {"liblasp._lasp.Call", sizeof(call), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, call_slots};

int native_add_types(void) {
  pass_type = (PyTypeObject *)PyType_FromSpec(&pass_spec);
  call_type = (PyTypeObject *)PyType_FromSpec(&call_spec);
  return pass_type && call_type && native_add_recents_type() == 0 ? 0 : -1;
}
