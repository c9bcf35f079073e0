package webhooks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/fusevm/fuse/internal/fleet"
)

const (
	// maxAnswer bounds what is read of an answer, keptAnswer what is kept.
	maxAnswer  = 16 << 10
	keptAnswer = 512
	maxError   = 300
)

// send tries a delivery once.
func (s *Service) send(ctx context.Context, h *fleet.Webhook, d *fleet.Delivery) (o outcome) {
	start := time.Now()
	defer func() { o.took = time.Since(start) }()
	keys, err := s.keys(h, start)
	if err != nil {
		return outcome{err: "the secret cannot be read: " + short(err.Error())}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL, bytes.NewReader(d.Body))
	if err != nil {
		return outcome{err: "the address cannot be used"}
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "fuse-webhooks/1")
	sign(r.Header, d.ID, start, d.Body, keys)
	resp, err := s.client.Do(r)
	if err != nil {
		return outcome{err: reasonOf(err), cut: ctx.Err() != nil}
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer)) // a broken answer has a status all the same
	o = outcome{status: resp.StatusCode, answer: printable(string(body[:min(len(body), keptAnswer)]))}
	switch {
	case resp.StatusCode/100 == 2:
	case resp.StatusCode/100 == 3:
		o.err = fmt.Sprintf("answered %d; redirects are not followed", resp.StatusCode)
	default:
		o.err, o.gone = fmt.Sprintf("answered %d", resp.StatusCode), resp.StatusCode == http.StatusGone
		switch resp.StatusCode {
		case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		default:
			o.refused = resp.StatusCode/100 == 4
		}
	}
	return o
}

// keys are the keys that sign a message now.
func (s *Service) keys(h *fleet.Webhook, now time.Time) (keys [][]byte, err error) {
	sealed := [][]byte{h.SecretSealed}
	if h.PreviousSealed != nil && now.Before(h.PreviousUntil) {
		sealed = append(sealed, h.PreviousSealed)
	}
	for _, box := range sealed {
		plain, err := s.cfg.Sealer.Open(SealKindSecret, h.ID, box)
		if err != nil {
			return nil, err
		}
		key, err := secretKey(string(plain))
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// reasonOf is why no answer came, without the address: that may hold a secret.
func reasonOf(err error) string {
	var fe *fleet.Error
	if errors.As(err, &fe) {
		return fe.Message
	}
	if ue := (*url.Error)(nil); errors.As(err, &ue) {
		if ue.Timeout() {
			return "no answer in time"
		}
		err = ue.Err
	}
	return short(printable(err.Error()))
}

func short(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxError)], "") }

// printable takes out of a text what a terminal would obey.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(s, ""))
}
