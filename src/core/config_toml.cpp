/* SPDX-License-Identifier: Apache-2.0 */
/* TOML -> tree, by toml++ as a shared library. The only C++ of the library: nothing is thrown past
 * kvc_toml_parse(). toml++ sorts the keys of a table; their source positions give the file order
 * back. TOML_HEADER_ONLY stays 0: header-only, an assert in the parser ends the process on
 * "[\n". */
#ifndef TOML_HEADER_ONLY
#define TOML_HEADER_ONLY 0
#endif
#include "core/config_parse.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <toml++/toml.h>

namespace
{

struct too_deep {
	toml::source_position where;
};

using position = std::pair<toml::source_index, toml::source_index>;

/* Where a node stands, or the first thing below it when it has no place of its own, as the table
 * `plugin` that [plugin.posix] makes. */
position first_position(const toml::node &node, unsigned depth)
{
	const toml::source_position begin = node.source().begin;
	const position last{ ~toml::source_index{ 0 }, 0 };
	position best = begin ? position{ begin.line, begin.column } : last;

	if (depth > KVC_CONFIG_MAX_DEPTH)
		return best;
	if (const toml::table *table = node.as_table()) {
		for (auto &&entry : *table)
			best = std::min(best, first_position(entry.second, depth + 1));
	} else if (const toml::array *array = node.as_array()) {
		for (auto &&element : *array)
			best = std::min(best, first_position(element, depth + 1));
	}
	return best;
}

json_t *checked(json_t *value)
{
	if (!value)
		throw std::bad_alloc();
	return value;
}

json_t *from_text(std::string_view text)
{
	return checked(json_stringn(text.data(), text.size()));
}

template <typename T> json_t *from_printed(const T &value)
{
	std::ostringstream stream;

	stream.imbue(std::locale::classic());
	stream << value;
	return from_text(stream.str());
}

/* The infinities and not-a-number have no place in the tree; no option takes them, and as texts
 * they are refused with the key's name. */
json_t *from_float(double value)
{
	if (std::isnan(value))
		return from_text("nan");
	if (std::isinf(value))
		return from_text(value > 0 ? "inf" : "-inf");
	return checked(json_real(value));
}

/* Owns a tree while it is built. */
struct holder {
	json_t *node;
	explicit holder(json_t *taken) : node(checked(taken))
	{
	}
	~holder()
	{
		json_decref(node);
	}
	holder(const holder &) = delete;
	holder &operator=(const holder &) = delete;
	json_t *release()
	{
		return std::exchange(node, nullptr);
	}
};

json_t *convert(const toml::node &node, unsigned depth);

json_t *convert_table(const toml::table &table, unsigned depth)
{
	struct child {
		position where;
		std::string_view key;
		const toml::node *node;
	};
	std::vector<child> children;
	holder object(json_object());

	for (auto &&entry : table)
		children.push_back(
			{ first_position(entry.second, depth), entry.first.str(), &entry.second });
	std::stable_sort(children.begin(), children.end(),
			 [](const child &a, const child &b) { return a.where < b.where; });
	for (const child &item : children) {
		json_t *value = convert(*item.node, depth + 1);

		if (json_object_setn_new(object.node, item.key.data(), item.key.size(), value) < 0)
			throw std::bad_alloc();
	}
	return object.release();
}

json_t *convert(const toml::node &node, unsigned depth)
{
	if (depth > KVC_CONFIG_MAX_DEPTH)
		throw too_deep{ node.source().begin };
	switch (node.type()) {
	case toml::node_type::table:
		return convert_table(*node.as_table(), depth);
	case toml::node_type::array: {
		holder array(json_array());

		for (auto &&element : *node.as_array())
			if (json_array_append_new(array.node, convert(element, depth + 1)) < 0)
				throw std::bad_alloc();
		return array.release();
	}
	case toml::node_type::string:
		return from_text(node.as_string()->get());
	case toml::node_type::integer:
		return checked(json_integer(node.as_integer()->get()));
	case toml::node_type::floating_point:
		return from_float(node.as_floating_point()->get());
	case toml::node_type::boolean:
		return json_boolean(node.as_boolean()->get());
	case toml::node_type::date:
		return from_printed(node.as_date()->get());
	case toml::node_type::time:
		return from_printed(node.as_time()->get());
	case toml::node_type::date_time:
		return from_printed(node.as_date_time()->get());
	default:
		return checked(json_null());
	}
}

/* toml++ quotes pieces of the input; one longer than a character may be a credential. */
std::string without_input(std::string_view description)
{
	const size_t first = description.find('\'');
	const size_t last = description.rfind('\'');

	if (first == std::string_view::npos || last - first <= 5)
		return std::string(description);
	return std::string(description.substr(0, first)) + "..." +
	       std::string(description.substr(last + 1));
}

} /* namespace */

extern "C" int kvc_toml_parse(const char *text, size_t bytes, json_t **out,
			      struct kvc_syntax_error *error)
{
	try {
		const toml::table table = toml::parse(std::string_view(text, bytes));

		*out = convert(table, 1);
		return 0;
	} catch (const toml::parse_error &e) {
		return kvc_syntax_fail(error, e.source().begin.line, e.source().begin.column,
				       without_input(e.description()).c_str());
	} catch (const too_deep &e) {
		return kvc_syntax_fail(error, e.where.line, e.where.column,
				       "nested deeper than 64 levels");
	} catch (const std::bad_alloc &) {
		return -ENOMEM;
	} catch (...) {
		return kvc_syntax_fail(error, 0, 0, "not TOML");
	}
}
