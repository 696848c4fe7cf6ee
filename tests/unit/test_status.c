/* SPDX-License-Identifier: MIT
 *
 * Status names and the sentence that explains a refusal.
 */
#include "check.h"

static const struct {
    int32_t status;
    const char *name;
} statuses[] = {
    {PKV_STATUS_OK, "OK"},
    {PKV_STATUS_NULL_ARGUMENT, "NULL_ARGUMENT"},
    {PKV_STATUS_INVALID_ARGUMENT, "INVALID_ARGUMENT"},
    {PKV_STATUS_DTYPE, "DTYPE"},
    {PKV_STATUS_RANK, "RANK"},
    {PKV_STATUS_SHAPE, "SHAPE"},
    {PKV_STATUS_STRIDE, "STRIDE"},
    {PKV_STATUS_MISALIGNED, "MISALIGNED"},
    {PKV_STATUS_OVERLAP, "OVERLAP"},
    {PKV_STATUS_LAYOUT, "LAYOUT"},
    {PKV_STATUS_STRUCT_SIZE, "STRUCT_SIZE"},
    {PKV_STATUS_DUPLICATE_SLOT, "DUPLICATE_SLOT"},
    {PKV_STATUS_SLOT_OUT_OF_RANGE, "SLOT_OUT_OF_RANGE"},
    {PKV_STATUS_BLOCK_OUT_OF_RANGE, "BLOCK_OUT_OF_RANGE"},
    {PKV_STATUS_POSITION_OUT_OF_RANGE, "POSITION_OUT_OF_RANGE"},
    {PKV_STATUS_OUT_OF_MEMORY, "OUT_OF_MEMORY"},
    {PKV_STATUS_OUT_OF_BLOCKS, "OUT_OF_BLOCKS"},
    {PKV_STATUS_CAPACITY, "CAPACITY"},
    {PKV_STATUS_UNSUPPORTED, "UNSUPPORTED"},
    {PKV_STATUS_BAD_STATE, "BAD_STATE"},
    {PKV_STATUS_STALE_HANDLE, "STALE_HANDLE"},
    {PKV_STATUS_OVERFLOW, "OVERFLOW"},
    {PKV_STATUS_SYSTEM, "SYSTEM"},
    {PKV_STATUS_INTERNAL, "INTERNAL"},
};

static void every_status_has_its_name(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        assert_string_equal(pkv_status_name(statuses[i].status), statuses[i].name);
    }
}

static void every_other_number_is_unknown(void **state) {
    (void)state;
    for (int32_t status = -300; status <= 300; status++) {
        int known = 0;

        for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
            known |= statuses[i].status == status;
        }
        if (!known) {
            assert_string_equal(pkv_status_name(status), "UNKNOWN");
        }
    }
    assert_string_equal(pkv_status_name(INT32_MIN), "UNKNOWN");
    assert_string_equal(pkv_status_name(INT32_MAX), "UNKNOWN");
}

/* The numbers are pinned: a program compiled with an old header reads them for ever. */
static void the_numbers_are_pinned(void **state) {
    (void)state;
    assert_int_equal(PKV_STATUS_OK, 0);
    assert_int_equal(PKV_STATUS_NULL_ARGUMENT, -1);
    assert_int_equal(PKV_STATUS_POSITION_OUT_OF_RANGE, -14);
    assert_int_equal(PKV_STATUS_OUT_OF_MEMORY, -30);
    assert_int_equal(PKV_STATUS_OUT_OF_BLOCKS, -31);
    assert_int_equal(PKV_STATUS_CAPACITY, -32);
    assert_int_equal(PKV_STATUS_UNSUPPORTED, -50);
    assert_int_equal(PKV_STATUS_BAD_STATE, -70);
    assert_int_equal(PKV_STATUS_STALE_HANDLE, -71);
    assert_int_equal(PKV_STATUS_OVERFLOW, -90);
    assert_int_equal(PKV_STATUS_SYSTEM, -110);
    assert_int_equal(PKV_STATUS_INTERNAL, -111);
}

/* Bit i of the mask says that fact i is there. */
static struct pkv_error error_with(unsigned mask) {
    struct pkv_error error = {.struct_size = sizeof(error),
                              .status = PKV_STATUS_SLOT_OUT_OF_RANGE,
                              .axis = -1,
                              .function = "pkv_scatter_run",
                              .index = PKV_ERROR_NONE,
                              .value = PKV_ERROR_NONE,
                              .bound = PKV_ERROR_NONE};

    if (mask & 1) {
        error.argument = "slot_mapping";
    }
    if (mask & 2) {
        error.index = 7341;
    }
    if (mask & 4) {
        error.value = -8652;
    }
    if (mask & 8) {
        error.bound = INT64_MAX;
    }
    if (mask & 16) {
        error.rule = "must be below the number of slots";
    }
    if (mask & 32) {
        error.axis = 3;
    }
    return error;
}

/* Element types have names, as value and as bound; what is none stays a number. */
static void element_types_are_named(void **state) {
    struct pkv_error error = {.struct_size = sizeof(error),
                              .status = PKV_STATUS_DTYPE,
                              .axis = -1,
                              .argument = "key",
                              .index = PKV_ERROR_NONE,
                              .value = PKV_DTYPE_BF16,
                              .bound = PKV_DTYPE_F8_E4M3FN,
                              .rule = "must be"};
    char text[128];

    (void)state;
    pkv_error_text(&error, text, sizeof(text));
    assert_string_equal(text, "key is bf16, but must be (f8_e4m3fn) [DTYPE]");
    error.value = PKV_DTYPE_BOOL + 1;
    error.bound = PKV_DTYPE_INVALID;
    pkv_error_text(&error, text, sizeof(text));
    assert_string_equal(text, "key is 15, but must be (0) [DTYPE]");
    error.value = PKV_DTYPE_BF16;
    error.status = PKV_STATUS_SHAPE;
    pkv_error_text(&error, text, sizeof(text));
    assert_string_equal(text, "key is 3, but must be (0) [SHAPE]");
}

/* A fact that is there is in the sentence, and one that is not is not. */
static void the_sentence_holds_the_facts(void **state) {
    static const char *const words[] = {"slot_mapping", "7341", "-8652", "9223372036854775807",
                                        "must be below the number of slots"};

    (void)state;
    for (unsigned mask = 0; mask < 64; mask++) {
        struct pkv_error error = error_with(mask);
        char text[512];
        size_t length = pkv_error_text(&error, text, sizeof(text));

        assert_int_equal(length, strlen(text));
        assert_non_null(strstr(text, "pkv_scatter_run"));
        assert_null(strstr(text, "-9223372036854775808"));
        assert_null(strstr(text, "(null)"));
        for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
            int there = strstr(text, words[i]) != NULL;

            /* An index counts the argument's elements: without an argument it says nothing. */
            assert_int_equal(there, (mask >> i) & (i == 1 ? mask & 1 : 1));
        }
        if ((mask & 32) && (mask & 1)) {
            assert_non_null(strchr(text, '3'));
        }
    }
}

static void a_short_buffer_gets_the_beginning(void **state) {
    struct pkv_error error = error_with(63);
    char whole[512];
    size_t length = pkv_error_text(&error, whole, sizeof(whole));

    (void)state;
    assert_true(length > 20 && length < sizeof(whole));
    assert_int_equal(pkv_error_text(&error, NULL, 0), length);
    for (size_t room = 1; room <= length + 2; room++) {
        char text[512];
        size_t kept = room - 1 < length ? room - 1 : length;

        memset(text, 0x5a, sizeof(text));
        assert_int_equal(pkv_error_text(&error, text, room), length);
        assert_memory_equal(text, whole, kept);
        assert_int_equal(text[kept], '\0');
        for (size_t i = room; i < sizeof(text); i++) {
            assert_int_equal(text[i], 0x5a);
        }
    }
}

static void an_empty_error_makes_a_sentence_too(void **state) {
    struct pkv_error empty = {0};
    struct pkv_error odd = {.status = 4711};
    const struct pkv_error *const errors[] = {&empty, &odd, NULL};

    (void)state;
    for (int i = 0; i < 3; i++) {
        char text[256] = "";
        size_t length = pkv_error_text(errors[i], text, sizeof(text));

        assert_int_equal(length, strlen(text));
    }
}

/* And only what it has is read: what lies behind it is no fact. */
static void an_old_error_struct_has_a_sentence(void **state) {
    struct pkv_error old;
    char text[256] = "";

    (void)state;
    memset(&old, 0x5a, sizeof(old));
    old.struct_size = offsetof(struct pkv_error, function);
    old.status = PKV_STATUS_STRIDE;
    old.axis = -1;
    pkv_error_text(&old, text, sizeof(text));
    assert_string_equal(text, "was refused [STRIDE]");
}

/* The caller's struct may be older than the library's: only what it has is written. */
static void an_old_error_struct_is_not_overrun(void **state) {
    union {
        struct pkv_error error;
        unsigned char bytes[sizeof(struct pkv_error)];
    } old;
    struct pkv_tensor tensor = {.data = &old, .dtype = 99, .ndim = 1, .shape = {1}};
    size_t known = offsetof(struct pkv_error, index);

    (void)state;
    memset(&old, 0x5a, sizeof(old));
    old.error.struct_size = known;
    assert_int_equal(pkv_tensor_resolve(&tensor, &old.error), PKV_STATUS_DTYPE);
    assert_int_equal(old.error.status, PKV_STATUS_DTYPE);
    assert_int_equal(old.error.struct_size, known);
    for (size_t i = known; i < sizeof(old); i++) {
        assert_int_equal(old.bytes[i], 0x5a);
    }
}

static void an_error_is_optional(void **state) {
    struct pkv_tensor tensor = {.dtype = 99};

    (void)state;
    assert_int_equal(pkv_tensor_resolve(&tensor, NULL), PKV_STATUS_DTYPE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_its_name),
        cmocka_unit_test(every_other_number_is_unknown),
        cmocka_unit_test(the_numbers_are_pinned),
        cmocka_unit_test(element_types_are_named),
        cmocka_unit_test(the_sentence_holds_the_facts),
        cmocka_unit_test(a_short_buffer_gets_the_beginning),
        cmocka_unit_test(an_empty_error_makes_a_sentence_too),
        cmocka_unit_test(an_old_error_struct_has_a_sentence),
        cmocka_unit_test(an_old_error_struct_is_not_overrun),
        cmocka_unit_test(an_error_is_optional),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
