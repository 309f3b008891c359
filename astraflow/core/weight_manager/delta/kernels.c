/* The loops of the delta codec that run over every element or every change. kernels.py calls them, says what they do,
 * and has the same in numpy for where this file was not compiled. All sizes are counts of elements.
 */
#include <stdint.h>
#include <string.h>

#define LINE 64 /* bytes that are compared at a time */

/* Elements of a line that differ, as a mask of words: 0 where the lines are equal. */
static inline unsigned words_that_differ(const char *a, const char *b) {
    unsigned mask = 0;
    for (int w = 0; w < LINE / 8; w++) {
        uint64_t left, right;
        memcpy(&left, a + 8 * w, 8);
        memcpy(&right, b + 8 * w, 8);
        mask |= (unsigned)(left != right) << w;
    }
    return mask;
}

static inline int lines_differ(const char *a, const char *b) {
    uint64_t any = 0;
    for (int w = 0; w < LINE / 8; w++) {
        uint64_t left, right;
        memcpy(&left, a + 8 * w, 8);
        memcpy(&right, b + 8 * w, 8);
        any |= left ^ right;
    }
    return any != 0;
}

/* From `begin`: gap and new value of each element that differs, until `end`, or until fewer than a line of places is
 * left. `next` is the first position that the next entry may have, before and after. Returns where it stopped. */
#define SCAN(NAME, T)                                                                                             \
    int64_t NAME(const T *old, const T *fresh, int64_t begin, int64_t end, int64_t *next, uint32_t *gaps,         \
                 T *values, int64_t places, int64_t *found) {                                                     \
        const int per_line = LINE / sizeof(T), per_word = 8 / sizeof(T);                                          \
        int64_t at = begin, count = 0, expected = *next;                                                          \
        while (at < end && places - count >= per_line) {                                                          \
            if (end - at < per_line) {                                                                            \
                for (; at < end; at++)                                                                            \
                    if (old[at] != fresh[at]) {                                                                   \
                        gaps[count] = (uint32_t)(at - expected), values[count++] = fresh[at];                     \
                        expected = at + 1;                                                                        \
                    }                                                                                             \
                break;                                                                                            \
            }                                                                                                     \
            if (lines_differ((const char *)(old + at), (const char *)(fresh + at))) {                             \
                unsigned words = words_that_differ((const char *)(old + at), (const char *)(fresh + at));         \
                for (; words; words &= words - 1) {                                                               \
                    int64_t first = at + __builtin_ctz(words) * per_word;                                         \
                    for (int64_t i = first; i < first + per_word; i++) {                                          \
                        gaps[count] = (uint32_t)(i - expected), values[count] = fresh[i];                         \
                        int differs = old[i] != fresh[i]; /* no branch: it would be guessed wrong */              \
                        count += differs;                                                                         \
                        expected = differs ? i + 1 : expected;                                                    \
                    }                                                                                             \
                }                                                                                                 \
            }                                                                                                     \
            at += per_line;                                                                                       \
        }                                                                                                         \
        *next = expected, *found = count;                                                                         \
        return at;                                                                                                \
    }
SCAN(scan_1, uint8_t)
SCAN(scan_2, uint16_t)
SCAN(scan_4, uint32_t)

/* Numbers → planes of their bytes, one behind the other, least significant first; rotated left by `rotate` bits. */
#define SPLIT(NAME, T)                                                                                            \
    void NAME(const T *numbers, int64_t count, int rotate, uint8_t *planes) {                                     \
        for (int64_t i = 0; i < count; i++) {                                                                     \
            T number = numbers[i];                                                                                \
            if (rotate) number = (T)(number << 1 | number >> (8 * sizeof(T) - 1));                                \
            for (unsigned place = 0; place < sizeof(T); place++)                                                  \
                planes[place * count + i] = (uint8_t)(number >> (8 * place));                                     \
        }                                                                                                         \
    }
SPLIT(split_2, uint16_t)
SPLIT(split_4, uint32_t)

/* The inverse of split: planes as given → numbers, rotated right by `rotate` bits. */
#define JOIN(NAME, T)                                                                                             \
    void NAME(const uint8_t *const *planes, int64_t count, int rotate, T *numbers) {                              \
        for (int64_t i = 0; i < count; i++) {                                                                     \
            T number = 0;                                                                                         \
            for (unsigned place = 0; place < sizeof(T); place++) number |= (T)((T)planes[place][i] << (8 * place)); \
            numbers[i] = rotate ? (T)(number >> 1 | number << (8 * sizeof(T) - 1)) : number;                      \
        }                                                                                                         \
    }
JOIN(join_2, uint16_t)
JOIN(join_4, uint32_t)

/* Gaps in planes → positions; returns the first position that the next entry may have. */
int64_t positions(const uint8_t *const *planes, int64_t count, int64_t next, int64_t *out) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t gap = planes[0][i] | (uint32_t)planes[1][i] << 8 | (uint32_t)planes[2][i] << 16 |
                       (uint32_t)planes[3][i] << 24;
        out[i] = next + gap;
        next = out[i] + 1;
    }
    return next;
}

/* Exchange the elements at growing positions with values. */
#define EXCHANGE(NAME, T)                                                                                         \
    void NAME(T *elements, const int64_t *where, T *values, int64_t count) {                                      \
        for (int64_t i = 0; i < count; i++) {                                                                     \
            if (i + 16 < count) __builtin_prefetch(elements + where[i + 16], 1);                                  \
            T before = elements[where[i]];                                                                        \
            elements[where[i]] = values[i];                                                                       \
            values[i] = before;                                                                                   \
        }                                                                                                         \
    }
EXCHANGE(exchange_1, uint8_t)
EXCHANGE(exchange_2, uint16_t)
EXCHANGE(exchange_4, uint32_t)
