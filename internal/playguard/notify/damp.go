package notify

import (
	"slices"
	"time"
)

// Sort is what a message is to who gets it.
type Sort string

// Sorts.
const (
	Problem  Sort = "problem"
	Recovery Sort = "recovery" // closes a problem of the same family
	Notice   Sort = "notice"
)

// Limit bounds the messages of one family about one subject: Most in any Window;
// one digest tells of the rest.
type Limit struct {
	Most   int
	Window time.Duration
}

// Damp is what is remembered of one family of messages about one subject.
type Damp struct {
	Sent  []time.Time `json:"sent,omitempty"`  // the latest messages, oldest first
	Held  int         `json:"held,omitempty"`  // that were not sent
	Since time.Time   `json:"since,omitzero"`  // when the first of those came
	Open  bool        `json:"open,omitempty"`  // a problem was told and has not ended
	Now   Sort        `json:"now,omitempty"`   // what the last one said, sent or not
	Type  string      `json:"type,omitempty"`  // of the event that said it
	Text  string      `json:"text,omitempty"`  // of it
	Title string      `json:"title,omitempty"` // of the subject
}

// Add decides about one more message: sent or held. A recovery of what nobody
// was told of is neither.
func (d Damp) Add(s Sort, l Limit, now time.Time) (next Damp, send bool) {
	if s == Recovery && !d.Open && d.Held == 0 {
		return d, false
	}
	if d.Held > 0 || d.within(l, now) >= l.Most {
		return d.hold(s, now), false
	}
	d = d.said(s)
	d.Sent = append(slices.Clone(d.Sent[max(0, len(d.Sent)-l.Most+1):]), now)
	return d, true
}

// said notes what a message says, sent or not.
func (d Damp) said(s Sort) Damp {
	d.Now = s
	switch s {
	case Problem:
		d.Open = true
	case Recovery:
		d.Open = false
	}
	return d
}

// hold keeps a message for a digest.
func (d Damp) hold(s Sort, now time.Time) Damp {
	d = d.said(s)
	if d.Held == 0 {
		d.Since = now
	}
	d.Held++
	return d
}

// within counts the messages of the last window.
func (d Damp) within(l Limit, now time.Time) (n int) {
	for _, at := range d.Sent {
		if now.Sub(at) < l.Window {
			n++
		}
	}
	return n
}

// Digest decides whether what was held is told now, in one message. For a window
// after it no others go out: what goes on is told once in each.
func (d Damp) Digest(l Limit, now time.Time) (next Damp, send bool) {
	if d.Held == 0 || now.Before(d.Due(l)) {
		return d, false
	}
	d.Held, d.Since, d.Sent = 0, time.Time{}, slices.Repeat([]time.Time{now}, l.Most)
	return d, true
}

// openMost is how long it is remembered that a problem is open: of one that ends
// later nobody is told.
const openMost = 90 * 24 * time.Hour

// Stale reports whether nothing needs to be remembered any more.
func (d Damp) Stale(l Limit, now time.Time) bool {
	if d.Held > 0 || d.within(l, now) > 0 {
		return false
	}
	return !d.Open || len(d.Sent) == 0 || now.Sub(d.Sent[len(d.Sent)-1]) >= openMost
}

// Due is when what is held is told; zero: nothing is.
func (d Damp) Due(l Limit) time.Time {
	if d.Held == 0 {
		return time.Time{}
	}
	return d.Since.Add(l.Window)
}
