// Package rekey keeps what lies sealed in the state under one key: it refuses a
// server whose key is not the one, and moves everything from one key to the
// next in small commits that may be interrupted anywhere.
package rekey
