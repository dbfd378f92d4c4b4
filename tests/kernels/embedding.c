/* A program of someone else: two threads take a chain each through layers, without Python.

   test_c_abi.py compiles it, as a library that is given the table, and (-DPROGRAM) as a program that
   starts Python to get it. */
#ifdef PROGRAM
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#endif
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "bnmc.h"

#define CHAINS 2
#define BATCH 5

typedef struct {
  const bnmc_f64 *table;
  bnmc_law law;
  int64_t chain, depth;
  uint64_t key;
  double *gram;
  int32_t status;
} job;

static void *walk(void *argument) {
  job *own = argument;
  int64_t bytes = own->table->workspace_bytes(&own->law);
  void *work = malloc((size_t)bytes); /* of any content */
  for (int i = 0; i < BATCH * BATCH; i++) own->gram[i] = i % (BATCH + 1) == 0;
  own->status = BNMC_OK;
  for (int64_t layer = 0; layer <= own->depth && own->status == BNMC_OK; layer++)
    own->status =
        own->table->conditional_layer(&own->law, own->gram, layer, own->chain, own->key, own->gram,
                                      work, bytes, NULL, NULL);
  free(work);
  return NULL;
}

/* Gram matrices of layer `depth` of two chains; the first status that is not BNMC_OK. */
int32_t run(const bnmc_f64 *table, int64_t depth, uint64_t key, double *grams) {
  job jobs[CHAINS];
  pthread_t threads[CHAINS];
  if (!bnmc_is_compatible(table->major, table->minor) || table->bytes < sizeof *table) return -1;
  for (int i = 0; i < CHAINS; i++) {
    bnmc_law law = {70, BATCH, BATCH, BNMC_CENTRED, 0.0, 1.0, 0.0};
    job own = {table, law, i, depth, key, grams + i * BATCH * BATCH, 0};
    jobs[i] = own;
    if (pthread_create(&threads[i], NULL, walk, &jobs[i])) return -1;
  }
  for (int i = 0; i < CHAINS; i++) pthread_join(threads[i], NULL);
  return jobs[0].status ? jobs[0].status : jobs[1].status;
}

#ifdef PROGRAM
int main(int count, char **arguments) {
  double grams[CHAINS * BATCH * BATCH];
  if (count != 3) return 2;
  Py_Initialize();
  PyObject *module = PyImport_ImportModule("bnmc.kernels.c");
  PyObject *table = module ? PyObject_CallMethod(module, "table", "s", "relu") : NULL;
  PyObject *address = table ? PyObject_GetAttrString(table, "address") : NULL;
  if (!address) {
    PyErr_Print();
    return 2;
  }
  const bnmc_f64 *functions = PyLong_AsVoidPtr(address);
  int32_t status = run(functions, atoll(arguments[1]), strtoull(arguments[2], NULL, 10), grams);
  if (status) return 3;
  for (int i = 0; i < CHAINS * BATCH * BATCH; i++) printf("%a\n", grams[i]);
  return Py_FinalizeEx() ? 4 : 0;
}
#endif
