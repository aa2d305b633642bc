/* lasp-layout: what this compiler makes of lasp.h, for bindings to compare with. As JSON, or with --tsv as lines of
 * tab-separated words for languages without a JSON reader. Needs the header only, not the library. The list of
 * names is made from the header's text (generate_list.py); every size, offset and value is measured here, and a
 * type in the list that is not the header's does not compile. */
#include <stdio.h>
#include <string.h>

#include <lasp/lasp.h>

static int tsv;

/* ---- JSON's punctuation --------------------------------------------------------------------------------- */

static const char *section = "", *closing = "";
static int first = 1;

/* Begins an item of a section: closes the section before, opens this one, puts the comma. */
static void item(const char *in_section, const char *open, const char *close) {
  if (strcmp(section, in_section) != 0) {
    printf("%s%s\"%s\": %s\n", closing, *closing ? ",\n" : "{\n", in_section, open);
    section = in_section, closing = close, first = 1;
  }
  printf("%s", first ? "" : ",\n");
  first = 0;
}

/* A struct or function stays open for its members until the next one begins. */
static int members = -1; /* how many the open one has; -1: none is open */
static const char *members_close = "";

static void close_members(void) {
  if (members >= 0 && !tsv) printf("%s", members_close);
  members = -1;
}

static void member(void) { printf("%s", members++ ? ",\n" : "\n"); }

/* ---- One function per kind of declaration ---------------------------------------------------------------- */

static void print_constant(const char *name, const char *group, long long value) {
  if (tsv) {
    printf("constant\t%s\t%lld\t%s\n", name, value, group);
    return;
  }
  item("constants", "{", "\n}");
  printf("  \"%s\": {\"value\": %lld, \"group\": \"%s\"}", name, value, group);
}

static void print_handle(const char *name) {
  if (tsv) {
    printf("handle\t%s\n", name);
    return;
  }
  item("handles", "[", "\n]");
  printf("  \"%s\"", name);
}

static void print_alias(const char *name, const char *type, size_t size) {
  if (tsv) {
    printf("alias\t%s\t%s\t%zu\n", name, type, size);
    return;
  }
  item("aliases", "{", "\n}");
  printf("  \"%s\": {\"type\": \"%s\", \"size\": %zu}", name, type, size);
}

static void print_bytes(const void *data, size_t size) {
  const unsigned char *const bytes = data;
  for (size_t i = 0; i < size; ++i) printf("%02x", bytes[i]);
}

static void print_struct(const char *name, size_t size, size_t alignment, const void *init) {
  close_members();
  if (tsv) {
    printf("struct\t%s\t%zu\t%zu\t", name, size, alignment);
    if (init) print_bytes(init, size);
    printf("%s\n", init ? "" : "-");
    return;
  }
  item("structs", "{", "\n}");
  printf("  \"%s\": {\"size\": %zu, \"align\": %zu, \"init\": ", name, size, alignment);
  printf("%s", init ? "\"" : "null");
  if (init) print_bytes(init, size);
  printf("%s, \"fields\": {", init ? "\"" : "");
  members = 0, members_close = "\n  }}";
}

static void print_field(const char *of, const char *name, const char *type, size_t offset, size_t size) {
  if (tsv) {
    printf("field\t%s\t%s\t%s\t%zu\t%zu\n", of, name, type, offset, size);
    return;
  }
  member();
  printf("    \"%s\": {\"type\": \"%s\", \"offset\": %zu, \"size\": %zu}", name, type, offset, size);
}

static void print_function(const char *name, const char *returns) {
  close_members();
  if (tsv) {
    printf("function\t%s\t%s\n", name, returns);
    return;
  }
  item("functions", "{", "\n}");
  printf("  \"%s\": {\"returns\": \"%s\", \"parameters\": [", name, returns);
  members = 0, members_close = "\n  ]}";
}

static void print_parameter(const char *of, const char *name, const char *type) {
  if (tsv) {
    printf("parameter\t%s\t%s\t%s\n", of, name, type);
    return;
  }
  member();
  printf("    {\"name\": \"%s\", \"type\": \"%s\"}", name, type);
}

/* ---- The list --------------------------------------------------------------------------------------------- */

#define LAYOUT_WORDS(...) __VA_ARGS__
/* Inside sizeof nothing is evaluated, so no function has to be there; the types are compared all the same. */
#define LAYOUT_CHECK(pointer, value) \
  do {                               \
    LAYOUT_WORDS pointer;            \
    (void)sizeof(p = (value));       \
  } while (0)
#define LAYOUT_NO_INIT \
  { 0 }
#define LAYOUT_CONSTANT(name, group) print_constant(#name, #group, (long long)(name));
#define LAYOUT_HANDLE(name)    \
  do {                         \
    const name *handle = NULL; \
    print_handle(#name);       \
    (void)handle;              \
  } while (0);
#define LAYOUT_ALIAS(name, type, pointer) \
  LAYOUT_CHECK(pointer, (name *)NULL);    \
  print_alias(#name, type, sizeof(name));
#define LAYOUT_STRUCT(name, init)                                                                   \
  do {                                                                                              \
    struct aligned {                                                                                \
      char before;                                                                                  \
      name value;                                                                                   \
    };                                                                                              \
    const name initial = init;                                                                      \
    const int has_init = strcmp(#init, "LAYOUT_NO_INIT") != 0;                                      \
    print_struct(#name, sizeof(name), offsetof(struct aligned, value), has_init ? &initial : NULL); \
  } while (0);
#define LAYOUT_FIELD(of, name, type, pointer) \
  LAYOUT_CHECK(pointer, &((of *)NULL)->name); \
  print_field(#of, #name, type, offsetof(of, name), sizeof(((of *)NULL)->name));
#define LAYOUT_FUNCTION(name, returns, pointer) \
  LAYOUT_CHECK(pointer, &name);                 \
  print_function(#name, returns);
#define LAYOUT_PARAMETER(of, name, type) print_parameter(#of, #name, type);

static void print_all(void) {
#include "layout_list.inc"
  close_members();
  if (!tsv) printf("%s\n}\n", closing);
}

int main(int argc, char **argv) {
  tsv = argc == 2 && strcmp(argv[1], "--tsv") == 0;
  if (argc > 1 && !tsv) {
    fprintf(stderr, "usage: %s [--tsv]\n", argv[0]);
    return 2;
  }
  print_all();
  return ferror(stdout) || fflush(stdout) ? 1 : 0;
}
