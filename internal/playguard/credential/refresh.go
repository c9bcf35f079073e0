package credential

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/state"
)

// Bounds of refreshing.
const (
	refreshEvery  = 30 * time.Second
	refreshTime   = 15 * time.Second
	maxAnswer     = 1 << 20
	defaultLife   = time.Hour // of a token whose source does not say
	leastAhead    = 5 * time.Minute
	firstRetry    = 30 * time.Second
	lastRetry     = 10 * time.Minute
	tellFailuresN = 3
	ownersAtOnce  = 8
	ownerTime     = time.Minute // of an owner in one round
)

// NextRefresh is when the source of a secret is to be asked: a fifth of its life
// before its end, and at least five minutes; zero if it has no source.
func NextRefresh(s Secret, now time.Time) time.Time {
	switch {
	case s.Source.IsZero():
		return time.Time{}
	case s.Failures > 0:
		wait := firstRetry
		for i := 1; i < s.Failures && wait < lastRetry; i++ {
			wait *= 2
		}
		return now.Add(min(wait, lastRetry))
	case s.Sealed == nil || s.ExpiresAt.IsZero():
		return now
	}
	left := s.ExpiresAt.Sub(now)
	return s.ExpiresAt.Add(-min(max(left/5, leastAhead), max(left/2, 0)))
}

// Refresher replaces secrets before they end.
type Refresher struct {
	Store  records.Store
	Sealer records.Sealer
	Logger *slog.Logger
	Client *http.Client // nil: one that follows no redirect
	Kick   func()
}

// Run asks sources until ctx ends.
func (r *Refresher) Run(ctx context.Context) error {
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	for {
		r.Round(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Round asks the sources that are due: those of an owner one after the other,
// first those that answered last time. Sources that do not answer keep no other
// owner's waiting for long.
func (r *Refresher) Round(ctx context.Context) (refreshed int) {
	due := map[string][]Secret{}
	if err := r.Store.View(func(tx *state.ReadTx) error {
		for _, s := range Secrets.All(tx) {
			if !s.Source.IsZero() && !time.Now().Before(s.RefreshAt) {
				due[s.Owner] = append(due[s.Owner], *s)
			}
		}
		return nil
	}); err != nil {
		r.Logger.Warn("secrets could not be read", slog.Any("error", err))
		return 0
	}
	var n atomic.Int64
	var g errgroup.Group
	g.SetLimit(ownersAtOnce)
	for _, list := range due {
		g.Go(func() error {
			n.Add(r.ofOwner(ctx, list))
			return nil
		})
	}
	_ = g.Wait() // none of them fails
	if n.Load() > 0 && r.Kick != nil {
		r.Kick()
	}
	return int(n.Load())
}

// ofOwner asks the sources of one owner; what there is no time for comes in the
// next round.
func (r *Refresher) ofOwner(ctx context.Context, due []Secret) (refreshed int64) {
	slices.SortFunc(due, func(a, b Secret) int {
		return cmp.Or(cmp.Compare(a.Failures, b.Failures), a.RefreshAt.Compare(b.RefreshAt))
	})
	late := time.Now().Add(ownerTime)
	for _, s := range due {
		if ctx.Err() != nil || time.Now().After(late) {
			break
		}
		got, err := r.ask(ctx, s)
		if werr := r.write(ctx, s, got, err); werr != nil {
			r.Logger.Warn("a refreshed secret could not be written", slog.String("secret", s.ID), slog.Any("error", werr))
		} else if err == nil {
			refreshed++
		}
	}
	return refreshed
}

// answer is what a source says.
type answer struct {
	Token       string    `json:"token"`
	AccessToken string    `json:"access_token"`
	Username    string    `json:"username"`
	ExpiresAt   time.Time `json:"expires_at"`
	ExpiresIn   int64     `json:"expires_in"`
}

// ask never quotes what the source answered: it may be half a token.
func (r *Refresher) ask(ctx context.Context, s Secret) (a answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, refreshTime)
	defer cancel()
	at := s.Source.URL
	if s.Source.QuerySealed != nil {
		query, err := r.Sealer.Open(SealKindQuery, s.ID, s.Source.QuerySealed)
		if err != nil {
			return a, fmt.Errorf("the query of its source: %w", err)
		}
		at += "?" + string(query)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
	if err != nil {
		return a, errors.New("the address of its source is not one")
	}
	req.Header.Set("Accept", "application/json")
	if s.Source.AuthorizationSealed != nil {
		header, err := r.Sealer.Open(SealKindSource, s.ID, s.Source.AuthorizationSealed)
		if err != nil {
			return a, fmt.Errorf("the header of its source: %w", err)
		}
		req.Header.Set("Authorization", string(header))
	}
	client := r.Client
	if client == nil {
		client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	res, err := client.Do(req)
	if err != nil {
		if full, ok := errors.AsType[*url.Error](err); ok {
			err = full.Err // the other part is the address
		}
		return a, fmt.Errorf("its source was not reached: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return a, fmt.Errorf("its source answered %d", res.StatusCode)
	}
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return a, errors.New("the answer of its source was cut")
	}
	if json.Unmarshal(raw, &a) != nil {
		return a, errors.New(`its source did not answer {"token": …}`)
	}
	if a.Token == "" {
		a.Token = a.AccessToken
	}
	if a.Token == "" || len(a.Token) > MaxValue || strings.ContainsAny(a.Token, "\n\r\x00") {
		return a, errors.New("its source answered without a token, or with one that is none")
	}
	return a, nil
}

// write writes what came of asking, if the secret is as it was.
func (r *Refresher) write(ctx context.Context, was Secret, a answer, failure error) error {
	_, err := r.Store.Update(ctx, func(tx *state.Tx) error {
		row, ok := Secrets.Get(tx, was.ID)
		if !ok || !row.UpdatedAt.Equal(was.UpdatedAt) {
			return nil
		}
		s := *row
		by := fleet.Reason{Actor: fleet.ActorPlayguard, Rule: fleet.RuleSettled}
		s.TriedAt = tx.Now()
		if failure != nil {
			s.Failures++
			s.Failure = failure.Error()
			s.RefreshAt = NextRefresh(s, tx.Now())
			if s.Failures == tellFailuresN {
				Tell(tx, &s, fleet.EventSecretStale, by, s.Failure)
			}
			return Secrets.Put(tx, s.ID, &s)
		}
		sealed, err := r.Sealer.Seal(SealKind, s.ID, []byte(a.Token))
		if err != nil {
			return fmt.Errorf("seal a secret: %w", err)
		}
		s.Sealed, s.Failures, s.Failure, s.UpdatedAt = sealed, 0, "", tx.Now()
		if a.Username != "" && len(a.Username) <= maxUsername && !strings.ContainsAny(a.Username, ":\n\r\x00") {
			s.Username = a.Username
		}
		switch {
		case !a.ExpiresAt.IsZero():
			s.ExpiresAt = a.ExpiresAt
		case a.ExpiresIn > 0:
			s.ExpiresAt = tx.Now().Add(time.Duration(min(a.ExpiresIn, 1<<31)) * time.Second)
		default:
			s.ExpiresAt = tx.Now().Add(defaultLife)
		}
		s.RefreshAt = NextRefresh(s, tx.Now())
		if least := tx.Now().Add(firstRetry); s.RefreshAt.Before(least) {
			s.RefreshAt = least // a source that gives what is over already is not asked without end
		}
		Tell(tx, &s, fleet.EventSecretRefreshed, by, "")
		return Secrets.Put(tx, s.ID, &s)
	})
	return err
}
