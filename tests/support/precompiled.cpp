// The program that the precompiled header of the tests belongs to (cmake/LaspPrecompile.cmake); it does nothing.
int main() {}
