// Package state owns the control plane's state. A Store keeps every row in
// memory, where readers see consistent snapshots and never wait, and has one
// writer: it runs queued closures one after another, sends what a batch of
// them changed to a Journal in one transaction, then makes the batch visible,
// then tells subscribers, then lets the callers go on. What an Update has
// returned is therefore durable, and nobody acts on what is not.
//
// Rows that come out of a transaction are shared and must not be changed:
// copy the struct, change the copy, and Put it. No closure may do I/O, start
// an Update or keep its transaction.
package state
