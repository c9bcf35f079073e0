// Package chain is about the disk of a VM as layers: overlays that are frozen,
// each on the one below and the lowest on the image, and one that is written.
// A frozen layer is a file that never changes; whoever needs it has a hard link
// to it, so that it goes with its last user.
package chain

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Deepest is how many frozen layers a disk may have before they are made one.
const Deepest = 8

// Layer is a frozen overlay.
type Layer struct {
	Number int    `json:"number"`
	Digest string `json:"digest"`
	Bytes  int64  `json:"bytes"` // of data
}

// Chain is a disk.
type Chain struct {
	Layers []Layer `json:"layers,omitempty"` // from the image up
	Active int     `json:"active"`           // the overlay that is written
	// Pending is one that is about to take its place; nobody knows before the
	// VM's process is asked. Zero: none.
	Pending int `json:"pending,omitempty"`
}

// File is the name of an overlay.
func File(number int) string {
	if number == 0 {
		return "disk.qcow2"
	}
	return "disk-" + strconv.Itoa(number) + ".qcow2"
}

// Pattern matches the names of overlays.
const Pattern = "disk*.qcow2"

// Next is a number that no overlay of the chain has.
func (c Chain) Next() int {
	next := max(c.Active, c.Pending)
	for _, l := range c.Layers {
		next = max(next, l.Number)
	}
	return next + 1
}

// Numbers are those of the layers and the active overlay, from the image up.
func (c Chain) Numbers() []int {
	var out []int
	for _, l := range c.Layers {
		out = append(out, l.Number)
	}
	return append(out, c.Active)
}

// Has says whether a file is one of the chain's, pending ones included.
func (c Chain) Has(file string) bool {
	if c.Pending != 0 && File(c.Pending) == file {
		return true
	}
	return slices.ContainsFunc(c.Numbers(), func(n int) bool { return File(n) == file })
}

// Frozen is the chain once the active overlay is a layer and next takes the
// writes.
func (c Chain) Frozen(active Layer, next int) Chain {
	active.Number = c.Active
	return Chain{Layers: append(slices.Clone(c.Layers), active), Active: next}
}

// Settled is the chain once it is known which overlay takes the writes. The
// layer that was frozen unseen has no digest yet.
func (c Chain) Settled(top int) Chain {
	if c.Pending != 0 && top == c.Pending {
		return c.Frozen(Layer{}, top)
	}
	c.Pending = 0
	return c
}

// Link gives dir the layers that from has. One that is there already must be
// the same.
func Link(layers []Layer, from, dir string) error {
	for _, l := range layers {
		if err := link(filepath.Join(from, File(l.Number)), filepath.Join(dir, File(l.Number))); err != nil {
			return fmt.Errorf("link a layer: %w", err)
		}
	}
	return nil
}

func link(from, to string) error {
	err := os.Link(from, to)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	a, err1 := os.Stat(from)
	b, err2 := os.Stat(to)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if !os.SameFile(a, b) {
		return fmt.Errorf("%s is another layer of the same number", to)
	}
	return nil
}

// Prune removes the overlays in dir that are not the chain's.
func (c Chain) Prune(dir string) error {
	return prune(dir, func(name string) bool { return c.Has(name) })
}

// Remove removes all overlays in dir.
func Remove(dir string) error { return prune(dir, func(string) bool { return false }) }

func prune(dir string, keep func(string) bool) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		name := e.Name()
		if ok, _ := filepath.Match(Pattern, name); !ok || strings.Contains(name, "/") || keep(name) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
