/* Tests of TestU01 on 32-bit words of standard input: one line for each p-value, as it is known.

   cc -O2 testu01.c -ltestu01 -ltestu01probdist -ltestu01mylib -lm -o testu01
   testu01 small|crush|big|rabbit

   Each test reads further words, so no word has a part in two tests. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <testu01/bbattery.h>
#include <testu01/swrite.h>
#include <testu01/unif01.h>

#define WORDS (1 << 16)

static uint32_t buffer[WORDS];
static size_t at = WORDS;
static unsigned long long consumed = 0;

static unsigned int next_word(void) {
    if (at == WORDS) {
        if (fread(buffer, sizeof *buffer, WORDS, stdin) != WORDS) {
            fprintf(stderr, "the stream ended\n");
            exit(2);
        }
        at = 0;
    }
    consumed++;
    return buffer[at++];
}

static void print_values(FILE *out) {
    for (int i = 0; i < bbattery_NTests; i++)
        fprintf(out, "%s\t%.17g\t%llu\n", bbattery_TestNames[i], bbattery_pVal[i], consumed);
    fflush(out);
}

int main(int count, char **arguments) {
    const char *name = count > 1 ? arguments[1] : "small";
    unif01_Gen *gen = unif01_CreateExternGenBits("words", next_word);
    /* The library prints to standard output; the values go to standard error. */
    swrite_Basic = FALSE;
    int tests = !strcmp(name, "small") ? 10 : !strcmp(name, "crush") ? 96 : 106;
    if (!strcmp(name, "rabbit")) {
        for (double bits = pow(2.0, 26); bits <= pow(2.0, 40); bits *= 4.0) {
            bbattery_Rabbit(gen, bits);
            print_values(stderr);
        }
    } else {
        for (int test = 1; test <= tests; test++) {
            int repeated[128] = {0};
            repeated[test] = 1;
            if (tests == 10)
                bbattery_RepeatSmallCrush(gen, repeated);
            else if (tests == 96)
                bbattery_RepeatCrush(gen, repeated);
            else
                bbattery_RepeatBigCrush(gen, repeated);
            print_values(stderr);
        }
    }
    unif01_DeleteExternGenBits(gen);
    return 0;
}
