/*
 * tokenize_print.c: the tokens of a line or of a conversation, for a reader.
 */
#include <stdio.h>

#include "cli/tokenize.h"

void tokenize_print(const struct tokenizer *t, const struct token_list *l)
{
    struct text out = {0};
    text_printf(&out, "  ids    ");
    for (uint32_t i = 0; i < l->n; i++) text_printf(&out, " %d", l->at[i].id);
    text_printf(&out, "\n  pieces ");
    for (uint32_t i = 0; i < l->n; i++) {
        char piece[512];
        const char *stored = tokenizer_piece(t, l->at[i].id);
        text_escape(piece, sizeof piece, stored ? stored : "<image>"); /* an image token that is in no vocabulary */
        text_printf(&out, " %s", piece);
    }
    text_append(&out, "\n", 1);
    fwrite(out.at, 1, out.n, stdout);
    text_free(&out);
}
