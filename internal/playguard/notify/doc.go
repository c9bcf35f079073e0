// Package notify tells people of what concerns them: by webhook and by e-mail,
// through routes for one player, one marquee or the installation. It reads the
// log of events, decides with a damper what is worth a message, and keeps what
// is to be sent until it is taken or given up.
package notify
