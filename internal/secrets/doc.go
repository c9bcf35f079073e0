// Package secrets seals what must not be stored in the clear, makes the
// credentials of a guest, and takes secret values out of text. It keeps no
// state and logs nothing.
package secrets
