package client

import (
	"context"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
)

// DeadLetters are the calls about dead letters.
type DeadLetters struct{ API *API }

// List returns a page of dead letters.
func (d DeadLetters) List(ctx context.Context, params gen.ListDeadLettersParams) (page gen.DeadLetterList, err error) {
	resp, err := d.API.raw.ListDeadLetters(ctx, &params)
	return page, decode(resp, err, &page)
}

// Get returns one dead letter; id is KIND:ENTITY.
func (d DeadLetters) Get(ctx context.Context, id string) (one gen.DeadLetter, err error) {
	resp, err := d.API.raw.GetDeadLetter(ctx, id)
	return one, decode(resp, err, &one)
}

// Purge forgets one dead letter.
func (d DeadLetters) Purge(ctx context.Context, id string) error {
	resp, err := d.API.raw.PurgeDeadLetter(ctx, id, &gen.PurgeDeadLetterParams{})
	return decode(resp, err, nil)
}

// PurgeAll forgets those of a kind, those not seen for longer than an age, or
// all, and returns how many they were.
func (d DeadLetters) PurgeAll(ctx context.Context, kind string, olderThan time.Duration, all bool) (int, error) {
	var params gen.PurgeDeadLettersParams
	if kind != "" {
		params.Kind = &kind
	}
	if olderThan > 0 {
		params.OlderThanSeconds = new(max(int64(olderThan/time.Second), 1))
	}
	if all {
		params.All = &all
	}
	var out gen.Purged
	resp, err := d.API.raw.PurgeDeadLetters(ctx, &params)
	if err = decode(resp, err, &out); err != nil || out.Purged == nil {
		return 0, err
	}
	return *out.Purged, nil
}
