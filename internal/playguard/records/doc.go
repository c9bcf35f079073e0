// Package records is Playguard's part of the state: its documents and how they
// are read, sealed and changed. A change names the revision that it was decided
// on; another one in between makes it a conflict, so what was decided on older
// facts never lands.
package records
