package notify

import (
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/state"
)

// Kinds of sealed values.
const (
	SealKindTarget = "notification_target" // of a route; the id is the route's
	SealKindMail   = "notification_mail"   // the password; the id is mailID
)

// Scope is whose events a route gets.
type Scope string

// Scopes.
const (
	ScopePlayer       Scope = "player"
	ScopeMarquee      Scope = "marquee"
	ScopeInstallation Scope = "installation"
)

// Channel is how a route tells.
type Channel string

// Channels.
const (
	ChannelWebhook Channel = "webhook"
	ChannelEmail   Channel = "email"
)

// Route is where somebody is told. Its URL may hold a secret, and lies sealed
// with the key that signs.
type Route struct {
	ID           string          `json:"id"`
	Name         string          `json:"name"`
	Owner        string          `json:"owner"`
	Scope        Scope           `json:"scope"`
	Marquee      model.MarqueeID `json:"marquee,omitempty"`
	Channel      Channel         `json:"channel"`
	TargetSealed []byte          `json:"target_sealed,omitempty"`
	Shown        string          `json:"shown,omitempty"` // of the URL
	To           []string        `json:"to,omitempty"`
	Events       []string        `json:"events,omitempty"`
	Most         int             `json:"most"`
	Window       time.Duration   `json:"window"`
	Paused       bool            `json:"paused,omitempty"`
	From         uint64          `json:"from"` // events after that
	Sent         int64           `json:"sent,omitempty"`
	GivenUp      int64           `json:"given_up,omitempty"`
	LastSent     time.Time       `json:"last_sent,omitzero"`
	Error        string          `json:"error,omitempty"`
	CreatedAt    time.Time       `json:"created_at"`
}

func (r *Route) limit() Limit { return Limit{r.Most, r.Window} }

// target is what is sealed of a webhook.
type target struct {
	URL    string `json:"url"`
	Secret string `json:"secret"`
}

// Message is one that waits to be sent, under the id <route>/<message>.
type Message struct {
	ID      string    `json:"id"`
	Route   string    `json:"route"`
	Sort    Sort      `json:"sort"`
	Type    string    `json:"type"`    // of the event, or "digest"
	Subject string    `json:"subject"` // entity type and id
	Title   string    `json:"title"`   // one line
	Text    string    `json:"text"`
	Held    int       `json:"held,omitempty"` // messages that this one stands for
	At      time.Time `json:"at"`
	NextAt  time.Time `json:"next_at"`
	Tries   int       `json:"tries,omitempty"`
	Error   string    `json:"error,omitempty"`
}

// Memory is what is remembered beside: one of its fields is set.
type Memory struct {
	Damp   *Kept   `json:"damp,omitempty"`
	Engine *Engine `json:"engine,omitempty"`
	Mail   *Mail   `json:"mail,omitempty"`
}

// Kept is a damper with what it is of.
type Kept struct {
	Route   string `json:"route"`
	Subject string `json:"subject"`
	Damp
}

// Engine is how far the log of events has been read.
type Engine struct {
	Cursor uint64 `json:"cursor"`
}

// Ids of memories that there is one of; those of dampers begin with a route's.
const (
	engineID = "~engine"
	mailID   = "~mail"
)

// TLS is how the connection to a mail server is protected.
type TLS string

// Protections. None is for a relay on this machine.
const (
	StartTLS    TLS = "starttls"
	ImplicitTLS TLS = "implicit"
	NoTLS       TLS = "none"
)

// Mail is how mail is sent.
type Mail struct {
	Host           string `json:"host"`
	Port           int    `json:"port"`
	TLS            TLS    `json:"tls"`
	User           string `json:"user,omitempty"`
	PasswordSealed []byte `json:"password_sealed,omitempty"`
	From           string `json:"from"`
	CA             string `json:"ca,omitempty"`
}

// The collections.
var (
	Routes   = state.NewCollection[Route]("notification_routes")
	Messages = state.NewCollection[Message]("notifications")
	Memories = state.NewCollection[Memory]("notification_states")
)

// MailPassword is the place of the password in a memory, for what seals anew;
// of memories that hold none it is one that is empty.
func MailPassword(m *Memory) *[]byte {
	if m.Mail == nil {
		return new([]byte)
	}
	mail := *m.Mail
	m.Mail = &mail
	return &m.Mail.PasswordSealed
}
