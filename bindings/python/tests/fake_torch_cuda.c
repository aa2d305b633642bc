/* The part of a torch that calls NCCL, for test_torch_nccl.py: a library that was linked to one. */
int ncclGetVersion(int *version);
int torch_version_of_nccl(int *version);
int torch_version_of_nccl(int *version) { return ncclGetVersion(version); }
