// The raw layer: lasp.h as the module liblasp.raw, with the names of the header. A status other than LASP_OK is
// raised, results come back as values, and the GIL is released in every call (-threads). The hand-written hot path
// joins it.
%module(package="liblasp") raw

%{
#include "native.h"
%}

%include <stdint.i>

%init %{
  if (native_add_types() != 0) {
#if SWIG_VERSION >= 0x040400  // the body of a Py_mod_exec slot there
    return -1;
#else
    return NULL;
#endif
  }
%}

// ---- Statuses and results ----

%{
/* Adds a result to those before it: one stays a value, several become a tuple. Takes both references. */
static PyObject *add_result(PyObject *results, PyObject *more) {
  if (!results || results == Py_None) {
    Py_XDECREF(results);
    return more;
  }
  if (!PyTuple_Check(results)) return Py_BuildValue("(NN)", results, more);
  PyObject *const one = Py_BuildValue("(N)", more);
  PyObject *const all = PySequence_Concat(results, one);
  Py_DECREF(results);
  Py_XDECREF(one);
  return all;
}
%}

%typemap(out) lasp_status {
  if (native_end_call($1) != 0) SWIG_fail;
  $result = Py_None;
  Py_INCREF($result);
}
// The one function whose status is a result.
%typemap(in, numinputs=0) lasp_status *status (lasp_status value) "value = LASP_OK; $1 = &value;"
%typemap(argout) lasp_status *status "$result = add_result($result, PyLong_FromLong(value$argnum));"

%define OUT_HANDLE(TYPE, NAME)
%typemap(in, numinputs=0) TYPE **NAME (TYPE *value) "value = NULL; $1 = &value;"
%typemap(argout) TYPE **NAME
  "$result = add_result($result, SWIG_NewPointerObj(value$argnum, $descriptor(TYPE *), 0));"
%enddef
OUT_HANDLE(lasp_comm, comm)
OUT_HANDLE(lasp_context, context)
OUT_HANDLE(lasp_plan, plan)
OUT_HANDLE(lasp_halo, halo)

%define OUT_VALUE(TYPE, NAME, MAKE)
%typemap(in, numinputs=0) TYPE *NAME (TYPE value) "value = 0; $1 = &value;"
%typemap(argout) TYPE *NAME "$result = add_result($result, MAKE(value$argnum));"
%enddef
OUT_VALUE(int32_t, major, PyLong_FromLong)
OUT_VALUE(int32_t, minor, PyLong_FromLong)
OUT_VALUE(int32_t, patch, PyLong_FromLong)
OUT_VALUE(int32_t, abi, PyLong_FromLong)
OUT_VALUE(int32_t, rank, PyLong_FromLong)
OUT_VALUE(int32_t, nranks, PyLong_FromLong)
OUT_VALUE(int32_t, world_rank, PyLong_FromLong)
OUT_VALUE(int32_t, device, PyLong_FromLong)
OUT_VALUE(int32_t, device_index, PyLong_FromLong)
OUT_VALUE(int32_t, first_rank, PyLong_FromLong)
OUT_VALUE(int32_t, last_rank, PyLong_FromLong)
OUT_VALUE(size_t, needed, PyLong_FromSize_t)
OUT_VALUE(double, predicted_us, PyFloat_FromDouble)

// lasp_comm_create_threads(n) -> tuple of n comms.
%typemap(in) (int32_t nranks, lasp_comm **comms) {
  const long count = PyLong_AsLong($input);
  if (count == -1 && PyErr_Occurred()) SWIG_fail;
  $1 = count < INT32_MIN || count > INT32_MAX ? -1 : (int32_t)count;
  $2 = (lasp_comm **)PyMem_Calloc(count > 0 && count <= 1024 ? (size_t)count : 1, sizeof(lasp_comm *));
  if (!$2) SWIG_fail;
}
%typemap(argout) (int32_t nranks, lasp_comm **comms) {
  PyObject *const comms = PyTuple_New($1);
  for (int32_t i = 0; comms && i < $1; ++i) {
    PyTuple_SetItem(comms, i, SWIG_NewPointerObj($2[i], $descriptor(lasp_comm *), 0));
  }
  $result = add_result($result, comms);
}
%typemap(freearg) (int32_t nranks, lasp_comm **comms) "PyMem_Free($2);"

// lasp_plan_describe(plan, capacity) -> (text, needed).
%typemap(in) (char *text, size_t capacity) {
  const unsigned long long capacity = PyLong_AsUnsignedLongLong($input);
  if (PyErr_Occurred()) SWIG_fail;
  $2 = (size_t)capacity;
  $1 = (char *)PyMem_Calloc($2 + 1, 1);
  if (!$1) {
    PyErr_NoMemory();
    SWIG_fail;
  }
}
%typemap(argout) (char *text, size_t capacity) "$result = add_result($result, PyUnicode_FromString($1));"
%typemap(freearg) (char *text, size_t capacity) "PyMem_Free($1);"

// Fixed arrays in structs come out as tuples.
%typemap(out) double [ANY] {
  $result = PyTuple_New($1_dim0);
  for (int i = 0; i < $1_dim0; ++i) PyTuple_SetItem($result, i, PyFloat_FromDouble($1[i]));
}

%typemap(out) int64_t [ANY] {
  $result = PyTuple_New($1_dim0);
  for (int i = 0; i < $1_dim0; ++i) PyTuple_SetItem($result, i, PyLong_FromLongLong($1[i]));
}

// Addresses as integers: arrays' memory, streams, a borrowed ncclComm_t.
%define ADDRESS(TYPE)
%typemap(in) TYPE {
  const unsigned long long address = $input == Py_None ? 0 : PyLong_AsUnsignedLongLong($input);
  if (PyErr_Occurred()) SWIG_fail;
  $1 = ($1_ltype)(uintptr_t)address;
}
%typemap(out) TYPE "$result = PyLong_FromUnsignedLongLong((unsigned long long)(uintptr_t)$1);"
%enddef
ADDRESS(void *)
ADDRESS(const void *)
ADDRESS(const lasp_run *)
ADDRESS(lasp_stream)
ADDRESS(struct ncclComm *)
ADDRESS(lasp_function)
ADDRESS(lasp_log_function)
ADDRESS(lasp_interrupted_function)

// ---- The header ----

// Each struct is made by its INIT macro, so that Python's S() is C's S s = S_INIT.
%define INITIALISED(TYPE, INIT)
%extend TYPE {
  TYPE() {
    const TYPE start = INIT;
    TYPE *const made = (TYPE *)malloc(sizeof *made);
    if (made) *made = start;
    return made;
  }
  ~TYPE() { free($self); }
}
%enddef
INITIALISED(lasp_build_info, LASP_BUILD_INFO_INIT)
INITIALISED(lasp_nccl_functions, LASP_NCCL_FUNCTIONS_INIT)
INITIALISED(lasp_transport, LASP_TRANSPORT_INIT)
INITIALISED(lasp_traffic, LASP_TRAFFIC_INIT)
INITIALISED(lasp_context_options, LASP_CONTEXT_OPTIONS_INIT)
INITIALISED(lasp_layout, LASP_LAYOUT_INIT)
INITIALISED(lasp_problem, LASP_PROBLEM_INIT)
INITIALISED(lasp_plan_info, LASP_PLAN_INFO_INIT)
INITIALISED(lasp_placement, LASP_PLACEMENT_INIT)
INITIALISED(lasp_packing, LASP_PACKING_INIT)
INITIALISED(lasp_buffer, LASP_BUFFER_INIT)
INITIALISED(lasp_const_buffer, LASP_BUFFER_INIT)
INITIALISED(lasp_forward_args, LASP_FORWARD_ARGS_INIT)
INITIALISED(lasp_backward_args, LASP_BACKWARD_ARGS_INIT)
INITIALISED(lasp_step_args, LASP_STEP_ARGS_INIT)
INITIALISED(lasp_halo_options, LASP_HALO_OPTIONS_INIT)
INITIALISED(lasp_halo_info, LASP_HALO_INFO_INIT)
INITIALISED(lasp_halo_args, LASP_HALO_ARGS_INIT)
INITIALISED(lasp_trace_options, LASP_TRACE_OPTIONS_INIT)
INITIALISED(lasp_maps_args, LASP_MAPS_ARGS_INIT)
INITIALISED(lasp_groups, LASP_GROUPS_INIT)

#pragma SWIG nowarn=451  // strings in structs are the library's, or the caller's to keep
%feature("autodoc", "1");
%include <lasp/lasp.h>

// ---- The hot path ----

%nothread;
%feature("autodoc", "0");
%rename(set_error_hook) native_set_error_hook;
%rename(set_array_hook) native_set_array_hook;
%rename(read_dlpack) native_read_dlpack;
%rename(read_buffer) native_read_buffer;
%rename(pass_create) native_pass_create;
%rename(learn_type) native_learn_type;
%rename(recents_create) native_recents_create;
%rename(comm_create_python) native_comm_create;
%rename(set_log) native_set_log;
%rename(set_interrupted) native_set_interrupted;
PyObject *native_set_error_hook(PyObject *hook);
PyObject *native_set_array_hook(PyObject *hook);
PyObject *native_read_dlpack(PyObject *capsule);
PyObject *native_read_buffer(PyObject *object);
PyObject *native_learn_type(PyObject *type, PyObject *capsule);
PyObject *native_recents_create(void);
PyObject *native_pass_create(int kind, lasp_plan *plan, int device, int device_index, PyObject *specs,
                             PyObject *forward);
lasp_status native_comm_create(PyObject *transport, const char *name, int32_t rank, int32_t nranks,
                               int32_t local_ranks, int32_t memory, double latency_us, double bandwidth_gbs,
                               lasp_comm **comm);
void native_set_log(lasp_context_options *options, PyObject *callable);
void native_set_interrupted(lasp_context_options *options, unsigned long long main_thread);

%{
#include <dlfcn.h>
%}
%inline %{
/* The path of the liblasp that is in use, as the loader knows it; "" where it cannot tell. */
static PyObject *library_path(void) {
  Dl_info found;
  const int told = dladdr((const void *)(uintptr_t)lasp_version, &found);
  return PyUnicode_DecodeFSDefault(told && found.dli_fname ? found.dli_fname : "");
}
/* A comm made elsewhere (liblasp_mpi), by its address. */
static lasp_comm *comm_from_address(unsigned long long address) { return (lasp_comm *)(uintptr_t)address; }
static unsigned long long address_of(const void *address) { return (unsigned long long)(uintptr_t)address; }
%}
