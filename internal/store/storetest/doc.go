// Package storetest is the suite that every journal passes, and what tests of
// other packages need to have a state.Store.
package storetest
