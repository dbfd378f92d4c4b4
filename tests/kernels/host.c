/* A C program that starts Python to get the table. */
#include <Python.h>
#include <stdio.h>

#include "embedding.c"

int main(void) {
  double grams[CHAINS * BATCH * BATCH];
  Py_Initialize();
  if (PyRun_SimpleString("from bnmc.kernels import c\n"
                         "address = c.table('relu', 'float64').address"))
    return 1;
  PyObject *address = PyObject_GetAttrString(PyImport_AddModule("__main__"), "address");
  int32_t status = run(PyLong_AsVoidPtr(address), 20, 7, grams);
  printf("%d", status);
  for (int i = 0; i < BATCH * BATCH; i += BATCH + 1) printf(" %.2f", grams[i]);
  printf("\n");
  Py_DECREF(address);
  return Py_FinalizeEx();
}
