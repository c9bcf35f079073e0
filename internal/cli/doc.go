// Package cli is the command line of Fuse: one file per verb, each a client of
// the public REST API. Chatter and progress go to stderr, results to stdout,
// --json prints the API's own objects.
package cli
