/*
 * stand_in.c: takes the place, in a release, of two libraries that libtiff links with to read one
 * of its compressions each. A TIFF with these is then refused as one that is damaged.
 *
 *     libLerc   is C++: a release would hold libstdc++, which asks for a newer glibc than all that the
 *               program needs
 *     libjbig   is under the GPL, which the rest of a release is not
 *
 * Types are those of the C interfaces as far as a call is concerned.
 */
enum { LERC_FAILED = 1, JBIG_FAILED = 0x50 };

int lerc_decode(void);
int lerc_encodeForVersion(void);
int lerc_getBlobInfo(void);
int jbg_dec_in(void);
unsigned long jbg_dec_getsize(void);
unsigned char *jbg_dec_getimage(void);
const char *jbg_strerror(void);
int jbg_newlen(void);
void jbg_dec_init(void);
void jbg_dec_free(void);
void jbg_enc_init(void);
void jbg_enc_out(void);
void jbg_enc_free(void);

int lerc_decode(void) { return LERC_FAILED; }
int lerc_encodeForVersion(void) { return LERC_FAILED; }
int lerc_getBlobInfo(void) { return LERC_FAILED; }

int jbg_dec_in(void) { return JBIG_FAILED; }
unsigned long jbg_dec_getsize(void) { return 0; }
unsigned char *jbg_dec_getimage(void) { return 0; }
const char *jbg_strerror(void) { return "this release reads no JBIG"; }
int jbg_newlen(void) { return JBIG_FAILED; }
void jbg_dec_init(void) {}
void jbg_dec_free(void) {}
void jbg_enc_init(void) {}
void jbg_enc_out(void) {}
void jbg_enc_free(void) {}
