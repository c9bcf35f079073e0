// Package admission is the one way by which something gets room on a host:
// creates, forks, restores, moves and resumes all ask here, in the transaction
// that writes their row. That row is the reservation. It is bound to one attempt
// (uid and generation), and whoever settles, moves or removes the row releases
// it in the same commit, so that nothing is reserved that no row holds, and
// nothing is released twice.
package admission
