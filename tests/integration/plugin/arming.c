/* One thread arms a switch while another asks NCCL's question, in every order of their steps.
 *
 * live.c is compiled into this program with each sequentially consistent access as a step: both threads are coroutines,
 * and a search tries every interleaving. Prints how many there were. */
#include <stdatomic.h>
#include <time.h>
#include <ucontext.h>

static void step(const void *place);
static int pause_asker(void);

#undef atomic_load
#undef atomic_store
#undef atomic_fetch_add
#undef atomic_fetch_sub
#define atomic_load(place) (step((const void *)(place)), atomic_load_explicit(place, memory_order_seq_cst))
#define atomic_store(place, value) \
  (step((const void *)(place)), atomic_store_explicit(place, value, memory_order_seq_cst))
#define atomic_fetch_add(place, value) \
  (step((const void *)(place)), atomic_fetch_add_explicit(place, value, memory_order_seq_cst))
#define atomic_fetch_sub(place, value) \
  (step((const void *)(place)), atomic_fetch_sub_explicit(place, value, memory_order_seq_cst))
#define nanosleep(pause, left) ((void)(pause), (void)(left), pause_asker())
#include "live.c"
#undef nanosleep

enum { ASKER, ARMER, THREADS, MOST_STEPS = 64, STACK_BYTES = 256 * 1024 };

#define CHECK(condition) \
  ((condition) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition), exit(1)))

static ucontext_t search, threads[THREADS];
static char stacks[THREADS][STACK_BYTES];
static int running = -1, is_done[THREADS];

static struct ncclt_communicator communicator;
static const char *plan_text;
static int found_amid, armed_result, is_waiting;
static struct ncclt_live_armed armed;

static void leave(void) {
  int here = running;
  running = -1;
  swapcontext(&threads[here], &search);
}

/* Sizes are compiled in a loop that no question takes part in, so they are no steps. */
static void step(const void *place) {
  const char *sizes = communicator.live ? (const char *)communicator.live->size : NULL;
  if (running < 0 || (sizes && (const char *)place >= sizes && (const char *)place < sizes + sizeof communicator.live->size))
    return;
  leave();
}

static int pause_asker(void) {
  is_waiting = 1;
  leave();
  return 0;
}

static int ask(void) {
  float costs[NCCL_ALGORITHMS * NCCL_PROTOCOLS];
  struct ncclt_choice choice;
  for (int i = 0; i < NCCL_ALGORITHMS * NCCL_PROTOCOLS; i++) costs[i] = (float)(i + 1);
  struct ncclt_call call = {.function = 4, .bytes = 1024, .pipe_ops = 1, .costs = costs,
                            .algorithms = NCCL_ALGORITHMS, .protocols = NCCL_PROTOCOLS};
  return ncclt_live_find(&communicator, &call, &choice);
}

static void run_asker(void) {
  found_amid = ask();
  is_done[ASKER] = 1;
  leave();
}

/* As `ncclt_live_arm` and `ncclt_live_decide` do, for the plan whose one row is for every size. */
static void run_armer(void) {
  char reason[NCCLT_REASON_SIZE];
  struct change *change = new_change(1, 1e9);
  CHECK(change);
  armed_result = arm(&communicator, change, plan_text, 0, &armed, reason);
  if (armed_result == 0) atomic_store_explicit(&change->state, COMMITTED, memory_order_release);
  else if (atomic_load_explicit(&communicator.live->latest, memory_order_relaxed) != change) free(change);
  is_done[ARMER] = 1;
  leave();
}

static void begin(int thread, void (*run)(void)) {
  getcontext(&threads[thread]);
  threads[thread].uc_stack.ss_sp = stacks[thread];
  threads[thread].uc_stack.ss_size = STACK_BYTES;
  threads[thread].uc_link = NULL;
  makecontext(&threads[thread], run, 0);
  is_done[thread] = 0;
}

/* Play one interleaving. `turns` says who runs at each of the first `decided` steps, and is completed with who ran at the
 * others: the asker where it can. `is_open`: the other thread could have run as well. Returns the number of steps. */
static int play(int turns[MOST_STEPS], int is_open[MOST_STEPS], int decided) {
  int wanted = 0, steps = 0;
  communicator = (struct ncclt_communicator){.api = 5, .id = 7, .ranks = 16, .nodes = 2};
  communicator.live = ncclt_live_open(&communicator, &wanted, communicator.live_reason);
  CHECK(communicator.live && wanted);
  CHECK(ask() == 0); /* the size is known from here on */
  is_waiting = 0;
  begin(ASKER, run_asker);
  begin(ARMER, run_armer);
  while (!is_done[ASKER] || !is_done[ARMER]) {
    CHECK(steps < MOST_STEPS);
    int can_ask = !is_done[ASKER] && !(is_waiting && !is_done[ARMER]);
    is_open[steps] = can_ask && !is_done[ARMER];
    if (!is_open[steps]) turns[steps] = can_ask ? ASKER : ARMER;
    else if (steps >= decided) turns[steps] = ASKER;
    running = turns[steps++];
    swapcontext(&search, &threads[running]);
  }
  return steps;
}

int main(int count, char **arguments) {
  int turns[MOST_STEPS], is_open[MOST_STEPS], decided = 0;
  long plays = 0, seen = 0, refused = 0;
  CHECK(count == 2 && setenv("NCCLT_LIVE", "1", 1) == 0);
  plan_text = arguments[1];
  for (;;) {
    int steps = play(turns, is_open, decided);
    plays++;
    /* The question has number 1. Refused: no question gets the plan. Else it does exactly where the switch has begun. */
    int is_plan_due = armed_result == 0 && armed.begins <= 1;
    CHECK(found_amid == is_plan_due);
    CHECK(ask() == (armed_result == 0));
    seen += is_plan_due;
    refused += armed_result != 0;
    ncclt_live_close(communicator.live);
    /* The next one: the other thread at the last step at which it has not been tried. */
    while (steps > 0 && (turns[steps - 1] == ARMER || !is_open[steps - 1])) steps--;
    if (steps == 0) break;
    turns[steps - 1] = ARMER;
    decided = steps;
  }
  CHECK(seen && refused);
  printf("%ld\n", plays);
  return 0;
}
