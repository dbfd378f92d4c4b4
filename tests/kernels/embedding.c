/* Each of two threads simulates a chain, without Python. host.c is a program that uses it. */
#include <pthread.h>
#include <stdlib.h>

#include "bnmc.h"

#define CHAINS 2
#define BATCH 5

/* Statuses beside those of bnmc_status. */
enum { NOT_COMPATIBLE = -1, NO_MEMORY = -2, NO_THREAD = -3 };

static const bnmc_law law = {
    .width = 70,
    .batch = BATCH,
    .columns = BATCH, /* one input */
    .norm = BNMC_CENTRED,
    .skip = 0.0,
    .gain = 1.0,
    .eps = 0.0,
};

typedef struct {
  const bnmc_f64 *table;
  int64_t chain, depth;
  uint64_t key;
  double *gram;
  int32_t status;
} job;

static void *walk(void *argument) {
  job *task = argument;
  int64_t bytes = task->table->workspace_bytes(&law);
  void *work = malloc((size_t)bytes); /* of any content */
  if (!work) {
    task->status = NO_MEMORY;
    return NULL;
  }
  for (int i = 0; i < BATCH * BATCH; i++) task->gram[i] = i % (BATCH + 1) == 0;
  task->status = BNMC_OK;
  for (int64_t layer = 0; layer <= task->depth && task->status == BNMC_OK; layer++)
    task->status =
        task->table->conditional_layer(&law, task->gram, layer, task->chain, task->key, task->gram,
                                       work, bytes, NULL, NULL);
  free(work);
  return NULL;
}

/* Gram matrices of layer `depth` of two chains; the first status that is not BNMC_OK. */
int32_t run(const bnmc_f64 *table, int64_t depth, uint64_t key, double *grams) {
  job jobs[CHAINS];
  pthread_t threads[CHAINS];
  int started = 0;
  int32_t status = BNMC_OK;
  if (!bnmc_is_compatible(table->major, table->minor) || table->bytes < sizeof *table)
    return NOT_COMPATIBLE;
  for (; started < CHAINS; started++) {
    jobs[started] = (job){.table = table, .chain = started, .depth = depth, .key = key};
    jobs[started].gram = grams + started * BATCH * BATCH;
    if (pthread_create(&threads[started], NULL, walk, &jobs[started])) {
      status = NO_THREAD;
      break;
    }
  }
  for (int i = 0; i < started; i++) { /* the threads that started use `jobs` until they end */
    pthread_join(threads[i], NULL);
    if (status == BNMC_OK) status = jobs[i].status;
  }
  return status;
}
