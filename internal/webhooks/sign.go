package webhooks

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

const (
	secretPrefix = "whsec_"
	secretSize   = 32
	// What a secret that somebody brings along may have, in bytes.
	minSecret, maxSecret = 24, 64
)

// newSecret makes the key of a webhook, in the form in which it is shown.
func newSecret() (string, error) {
	raw := make([]byte, secretSize)
	if _, err := rand.Read(raw); err != nil {
		return "", fmt.Errorf("make webhook secret: %w", err)
	}
	return secretPrefix + base64.StdEncoding.EncodeToString(raw), nil
}

// secretKey is the key that a secret stands for.
func secretKey(secret string) ([]byte, error) {
	text, ok := strings.CutPrefix(secret, secretPrefix)
	raw, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(raw) < minSecret || len(raw) > maxSecret {
		return nil, fleet.Invalid("secret", fmt.Sprintf("%s and the base64 of %d to %d bytes", secretPrefix, minSecret, maxSecret),
			"leave it out and one is made", "is not of the form of a webhook secret")
	}
	return raw, nil
}

// sign sets the headers of Standard Webhooks: one signature for each key that
// is valid.
func sign(h http.Header, id string, at time.Time, body []byte, keys [][]byte) {
	stamp := strconv.FormatInt(at.Unix(), 10)
	signatures := make([]string, 0, len(keys))
	for _, key := range keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + stamp + "."))
		mac.Write(body)
		signatures = append(signatures, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	h.Set("webhook-id", id)
	h.Set("webhook-timestamp", stamp)
	h.Set("webhook-signature", strings.Join(signatures, " "))
}
