/* Sixteen children a node: five levels for a million leaves, two cache lines a node.
   Each level is done for all rows before the next, so that the waits for memory overlap. */
#include <stdint.h>

#define WIDTH 16
#define AHEAD 16

static void recompute(const double *below, double *level, int64_t node) {
    double sum = 0.0;
    for (int k = 0; k < WIDTH; k++) sum += below[node * WIDTH + k];
    level[node] = sum;
}

/* levels[0] is the root's children, levels[depth - 1] the leaves; `node` is room for num */
void tree_set(double **levels, int64_t depth, const int64_t *index, const double *value,
              int64_t num, int64_t *node) {
    double *leaves = levels[depth - 1];
    for (int64_t i = 0; i < num; i++) {
        if (i + AHEAD < num) __builtin_prefetch(&leaves[index[i + AHEAD]], 1);
        leaves[index[i]] = value[i];
        node[i] = index[i];
    }
    for (int64_t l = depth - 2; l >= 0; l--) {
        int64_t last = -1, kept = 0;
        for (int64_t i = 0; i < num; i++) {
            int64_t parent = node[i] / WIDTH;
            if (parent != last) node[kept++] = last = parent;
        }
        num = kept;
        for (int64_t i = 0; i < num; i++) {
            if (i + AHEAD < num) {
                __builtin_prefetch(&levels[l + 1][node[i + AHEAD] * WIDTH]);
                __builtin_prefetch(&levels[l + 1][node[i + AHEAD] * WIDTH + WIDTH / 2]);
            }
            recompute(levels[l + 1], levels[l], node[i]);
        }
    }
}

/* The leaf at which the running sum of all leaves goes over target; never one of weight 0. */
void tree_find(double **levels, int64_t depth, double *target, int64_t num, int64_t *node) {
    for (int64_t i = 0; i < num; i++) node[i] = 0;
    for (int64_t l = 0; l < depth; l++) {
        const double *level = levels[l];
        for (int64_t i = 0; i < num; i++) {
            if (i + AHEAD < num) {
                __builtin_prefetch(&level[node[i + AHEAD] * WIDTH]);
                __builtin_prefetch(&level[node[i + AHEAD] * WIDTH + WIDTH / 2]);
            }
            const double *child = &level[node[i] * WIDTH];
            double sum = 0.0, before = 0.0, start = 0.0;
            int chosen = -1, last = 0;
            for (int k = 0; k < WIDTH; k++) {
                before = sum;
                sum += child[k];
                if (child[k] > 0) {
                    last = k;
                    start = before;
                    if (target[i] < sum) { chosen = k; break; }
                }
            }
            if (chosen < 0) chosen = last; /* rounding went past the end */
            target[i] -= start;
            node[i] = node[i] * WIDTH + chosen;
        }
    }
}
