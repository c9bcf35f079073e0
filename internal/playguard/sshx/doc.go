// Package sshx reaches marquees over SSH: one connection for each, a few
// sessions on it, a deadline on everything that can block, pinned host keys and
// a typed end for every round trip. It knows nothing of what it runs.
package sshx
