/* The hot path: a Pass is one of a plan's three calls with what it expects of each array, so that a call is a few
 * comparisons per array, the library's function without the GIL, and nothing else. A Call is a pass whose arrays
 * are taken once and kept. */
#include "native.h"

#include <string.h>

enum { MAX_SLOTS = 17 };

/* Where the arguments of each call lie in its struct. lasp_buffer and lasp_const_buffer are laid out alike. */
typedef struct slot {
  const char *name;
  size_t offset;
  int writable;
} slot;

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

static const struct {
  const char *name;
  const slot *slots;
  int count;
} kinds[] = {{"forward", forward_slots, sizeof forward_slots / sizeof(slot)},
             {"backward", backward_slots, sizeof backward_slots / sizeof(slot)},
             {"step", step_slots, sizeof step_slots / sizeof(slot)}};

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
  native_spec specs[MAX_SLOTS];
  lasp_packing packing; /* of the calls to come, of a packed plan; size 0: none was given */
  PyObject *offsets;    /* what holds its offsets */
} pass;

typedef struct call {
  PyObject_HEAD pass *of;
  int taken;
  arguments args;
  lasp_packing packing; /* as it was when the call was bound */
  PyObject *offsets;
  native_array arrays[MAX_SLOTS];
} call;

static PyTypeObject *pass_type, *call_type;

static void free_object(PyObject *self) {
  PyTypeObject *const type = Py_TYPE(self);
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(self);
  Py_DECREF(type);
}

/* One array's spec out of None or (dtype, shape, strides); dtype NATIVE_BYTES takes no shape. */
static int read_spec(native_spec *spec, const slot *slot, PyObject *given) {
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
      PyTuple_Size(specs) != kinds[kind].count) {
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
  for (int i = 0; i < kinds[kind].count; ++i) {
    if (read_spec(&self->specs[i], &kinds[kind].slots[i], PyTuple_GetItem(specs, i)) != 0) {
      Py_DECREF(self);
      return NULL;
    }
  }
  return (PyObject *)self;
}

static void start_arguments(arguments *args, int kind) {
  memset(args, 0, sizeof *args);
  args->forward.size = kind == NATIVE_FORWARD    ? sizeof(lasp_forward_args)
                       : kind == NATIVE_BACKWARD ? sizeof(lasp_backward_args)
                                                 : sizeof(lasp_step_args);
}

/* A packing for the args of a call; the offsets live as long as `packing` is used. */
static void give_packing(const lasp_packing *packing, int kind, arguments *args) {
  if (packing->size == 0) return;
  if (kind == NATIVE_FORWARD) args->forward.packing = packing;
  if (kind == NATIVE_BACKWARD) args->backward.packing = packing;
}

/* Takes the arrays in order; on failure those taken so far are released. */
static int take_arrays(const pass *self, int flags, PyObject *const *objects, native_array *arrays,
                       arguments *args) {
  const int vouched = (flags & NATIVE_VOUCHED) != 0;
  for (int i = 0; i < kinds[self->kind].count; ++i) {
    if (native_array_take(&arrays[i], objects[i], &self->specs[i], self->device, self->device_index, vouched) !=
        0) {
      while (i-- > 0) native_array_release(&arrays[i]);
      return -1;
    }
    memcpy(args->bytes + kinds[self->kind].slots[i].offset, &arrays[i].memory, sizeof(lasp_buffer));
  }
  return 0;
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
  give_packing(&packing, self->kind, &args);
  PyObject *const result = run_packed(self, &args, stream_address);
  Py_XDECREF(offsets);
  return result;
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

static int read_stream(PyObject *object, unsigned long long *stream) {
  *stream = 0;
  return object == Py_None ? 0 : read_number(object, "stream", stream);
}

/* (address, bytes) of an argument. */
static int read_memory(PyObject *object, const char *name, lasp_buffer *memory) {
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

/* Begins a call's struct, and reads what is said with its arrays. */
static int start_call(const pass *self, PyObject *said, arguments *args) {
  const long all = PyLong_AsLong(said), flags = all & (NATIVE_REUSE_CACHE | NATIVE_VOUCHED);
  if (PyErr_Occurred()) return -1;
  start_arguments(args, self->kind);
  if (self->kind == NATIVE_FORWARD) args->forward.reuse_state_cache = flags & NATIVE_REUSE_CACHE;
  if (self->kind == NATIVE_BACKWARD) args->backward.add = (int32_t)(all >> NATIVE_ADD_SHIFT);
  if (self->kind == NATIVE_STEP) args->step.tokens = (int64_t)(all >> NATIVE_ADD_SHIFT);
  return (int)flags;
}

/* pass.run(stream, flags, array...): one call. */
static PyObject *pass_run(PyObject *object, PyObject *const *given, Py_ssize_t count) {
  const pass *const self = (const pass *)object;
  const int slots = kinds[self->kind].count;
  if (count != slots + 2) {
    return PyErr_Format(PyExc_TypeError, "%s takes %d arrays, %d were given", kinds[self->kind].name, slots,
                        (int)count - 2);
  }
  if (!self->plan) return native_refuse(LASP_ERROR_INVALID_HANDLE, "plan: it is closed");
  unsigned long long stream;
  arguments args;
  const int flags = start_call(self, given[1], &args);
  if (flags < 0 || read_stream(given[0], &stream) != 0) return give_up(self, flags);
  native_array arrays[MAX_SLOTS];
  if (take_arrays(self, flags, given + 2, arrays, &args) != 0) return give_up(self, flags);
  PyObject *const result = run(self, &args, stream);
  for (int i = 0; i < slots; ++i) native_array_release(&arrays[i]);
  return result;
}

/* pass.run_pointers(stream, flags, (address, bytes) or None...): for callers that have checked shapes themselves.
 */
static PyObject *pass_run_pointers(PyObject *object, PyObject *const *given, Py_ssize_t count) {
  const pass *const self = (const pass *)object;
  const int slots = kinds[self->kind].count;
  if (count != slots + 2) {
    return PyErr_Format(PyExc_TypeError, "%s takes %d arrays, %d were given", kinds[self->kind].name, slots,
                        (int)count - 2);
  }
  unsigned long long stream;
  arguments args;
  const int flags = start_call(self, given[1], &args);
  if (flags < 0 || read_stream(given[0], &stream) != 0) return give_up(self, flags);
  for (int i = 0; i < slots; ++i) {
    lasp_buffer memory;
    if (given[i + 2] == Py_None) continue;
    if (read_memory(given[i + 2], kinds[self->kind].slots[i].name, &memory) != 0) return give_up(self, flags);
    memcpy(args.bytes + kinds[self->kind].slots[i].offset, &memory, sizeof memory);
  }
  return run(self, &args, stream);
}

/* pass.bind(flags, array...) -> Call. */
static PyObject *pass_bind(PyObject *object, PyObject *const *given, Py_ssize_t count) {
  pass *const self = (pass *)object;
  if (count != kinds[self->kind].count + 1) {
    return PyErr_Format(PyExc_TypeError, "%s takes %d arrays, %d were given", kinds[self->kind].name,
                        kinds[self->kind].count, (int)count - 1);
  }
  call *const bound = (call *)PyType_GenericAlloc(call_type, 0);
  if (!bound) return NULL;
  Py_INCREF(object);
  bound->of = self;
  bound->packing = self->packing;
  bound->offsets = self->offsets;
  Py_XINCREF(bound->offsets);
  const int flags = start_call(self, given[0], &bound->args);
  if (flags < 0 || take_arrays(self, flags, given + 1, bound->arrays, &bound->args) != 0) {
    Py_DECREF(bound);
    return NULL;
  }
  give_packing(&bound->packing, self->kind, &bound->args);
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
  if (count == 1 && read_stream(given[0], &stream) != 0) return give_up(self->of, flags_of(self->of, &self->args));
  return run_packed(self->of, &self->args, stream);
}

/* call.addresses() -> {name: address} of the arrays that were given: what the library is handed. */
static PyObject *call_addresses(PyObject *object, PyObject *unused) {
  (void)unused;
  const call *const self = (const call *)object;
  PyObject *const addresses = PyDict_New();
  for (int i = 0; addresses && i < kinds[self->of->kind].count; ++i) {
    const lasp_buffer memory = self->arrays[i].memory;
    PyObject *const address = memory.data ? PyLong_FromVoidPtr(memory.data) : NULL;
    if (address) PyDict_SetItemString(addresses, kinds[self->of->kind].slots[i].name, address);
    Py_XDECREF(address);
  }
  return addresses;
}

static void call_free(PyObject *object) {
  call *const self = (call *)object;
  if (self->taken) {
    for (int i = 0; i < kinds[self->of->kind].count; ++i) native_array_release(&self->arrays[i]);
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
