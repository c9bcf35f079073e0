// Package rig is what the tests of Playguard stand on: a real sshd in front of
// a real dockerd with either Compose, things on the host that are nobody's
// business of ours, a watcher that hears everything that Docker does, and a
// reconciler made of the product's own parts whose clock the test moves.
package rig
